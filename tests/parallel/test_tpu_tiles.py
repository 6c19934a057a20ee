"""What arrays take of a TPU's memory, beside the layouts that libtpu gives them, and some worked out by hand."""

import importlib.util
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from jaxinfer.parallel.tpu_tiles import tiled_bytes
from tests.parallel import tpu_layouts

needs_tpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, of the extra compile-tpu, is not installed"
)


@pytest.mark.parametrize(
    ("shape", "bits", "expected"),
    [
        ((128, 2048, 96), 16, 128 * 2048 * 96 * 2),  # the axis of 2048 becomes the minor one
        ((257, 3), 32, 3 * 128 * 4 * 4),
        ((4096, 1), 32, 4096 * 4),
        ((2, 4096), 16, 2 * 4096 * 2),
        ((100, 100), 32, 104 * 128 * 4),
        ((64, 64), 4, 64 * 128 // 2),
        ((80,), 32, 512),
        ((80,), 16, 512),
    ],
)
def test_by_hand(shape: tuple[int, ...], bits: int, expected: int) -> None:
    assert tiled_bytes(shape, bits) == expected


def test_of_an_order_that_is_given() -> None:
    """By rows, 96 columns are padded to 128."""
    assert tiled_bytes((128, 2048, 96), 16, order=(0, 1, 2)) == 128 * 2048 * 128 * 2


BITS = {"int32": 32, "float32": 32, "bfloat16": 16, "int16": 16, "int8": 8, "float8_e4m3fn": 8, "int4": 4}
USUAL = (1, 2, 3, 4, 6, 8, 16, 48, 64, 96, 128, 192, 256, 512, 720, 2048, 4096)


@needs_tpu_compiler
def test_as_libtpu_lays_arrays_out(tmp_path) -> None:
    rng = np.random.default_rng(0)
    asked = tmp_path / "asked"
    shapes = [_shape(rng) for _ in range(1500)]
    asked.write_text("\n".join(f"{rng.choice(list(BITS))} {' '.join(map(str, shape))}" for shape in shapes))
    done = subprocess.run(
        [sys.executable, "-m", tpu_layouts.__name__, str(asked)],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    told = [line.split() for line in done.stdout.splitlines() if line.startswith("LAYOUT")]
    assert len(told) == 4 * len(shapes)
    for _, kind, *numbers, layout in told:
        shape = tuple(map(int, numbers))
        assert tiled_bytes(shape, BITS[kind]) == _bytes_of(layout, shape, BITS[kind]), (kind, shape, layout)


def _shape(rng: np.random.Generator) -> tuple[int, ...]:
    count = int(rng.integers(1, 6))
    picked = np.where(rng.random(count) < 0.5, rng.choice(USUAL, count), rng.integers(1, 300, count))
    shape = tuple(map(int, picked))
    return shape if math.prod(shape) < 1 << 31 else _shape(rng)


def _bytes_of(layout: str, shape: Sequence[int], bits: int) -> int:
    """Of XLA's words for a layout, as {0,1:T(8,128)(2,1)}: axes from the minor one up, and the tile of the last two."""
    found = re.match(r"\{([\d,]*):T\(([\d,]+)\)", layout)
    assert found is not None, layout
    sizes = [shape[int(axis)] for axis in found[1].split(",")]
    tile = [int(size) for size in found[2].split(",")][::-1]
    padded = [-(-size // each) * each for size, each in zip(sizes, tile, strict=False)]
    return math.prod([*padded, *sizes[len(tile) :]]) * bits // 8
