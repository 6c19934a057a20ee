"""The grouped matmul beside a float64 oracle, in plain JAX and in the TPU interpreter."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels.group_tiles import group_tiles
from jaxinfer_kernels.grouped_matmul import grouped_matmul
from jaxinfer_kernels.matmul_blocks import MatmulBlocks

from tests.draws import random_cases
from tests.kernels.matmul_cases import E2M1, E4M3, E8M0, SIZES, TOLERANCE, grouped_case, run, worst_error

BACKENDS = ("xla", "mosaic_tpu")
BLOCKS = MatmulBlocks(rows=16, columns=128)


def error(
    backend: str,
    sizes: list[int],
    *,
    rows: int = 50,
    columns: int = 200,
    depth: int = 256,
    dtype: Any = jnp.float32,
    weight_type: Any = jnp.float32,
    group: int | None = None,
    zeros: bool = False,
    scale_type: Any = jnp.float32,
    blocks: MatmulBlocks | None = BLOCKS,
) -> float:
    shape = (columns, depth)
    x, weights, named, expected = grouped_case(sizes, rows, shape, dtype, weight_type, group, zeros, scale_type)
    counts = jnp.array(sizes, jnp.int32)
    result = run(grouped_matmul, x, weights, counts, named=named, blocks=blocks, backend=backend)
    return worst_error(result, expected)


@pytest.mark.smoke
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_groups(sizes: list[int], backend: str):
    assert error(backend, sizes) < TOLERANCE[jnp.float32]


@pytest.mark.few(5)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("dtype", "weight_type", "group", "zeros"),
    [
        (jnp.bfloat16, jnp.bfloat16, None, False),
        (jnp.bfloat16, jnp.int8, None, False),
        (jnp.float32, jnp.int8, None, True),
        (jnp.float32, jnp.int8, 128, False),
        (jnp.float32, jnp.int4, None, False),
        (jnp.bfloat16, jnp.int4, 128, True),
        (jnp.float32, jnp.int4, 32, True),
        (jnp.bfloat16, E4M3, None, False),
        (jnp.float32, E4M3, 128, True),
        (E4M3, E4M3, None, False),
        (jnp.int8, jnp.int8, None, False),
    ],
)
def test_weight_types(dtype: Any, weight_type: Any, group: int | None, zeros: bool, backend: str):
    sizes = SIZES["rows-of-no-group"]
    kind = {"dtype": dtype, "weight_type": weight_type, "group": group, "zeros": zeros}
    assert error(backend, sizes, **kind) < TOLERANCE.get(dtype, 1e-5)


@pytest.mark.smoke
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [8, 40], ids=["late", "early"])
@pytest.mark.parametrize(
    ("dtype", "group", "scale_type"),
    [(jnp.float32, 32, E8M0), (jnp.bfloat16, 32, E8M0), (jnp.float32, 16, jnp.float32), (jnp.bfloat16, 16, E4M3)],
)
def test_e2m1(dtype: Any, group: int, scale_type: Any, rows: int, backend: str):
    kind = {"dtype": dtype, "weight_type": E2M1, "group": group, "scale_type": scale_type}
    blocks = MatmulBlocks(rows=rows, columns=128)
    assert error(backend, SIZES["rows-of-no-group"], blocks=blocks, **kind) < TOLERANCE[dtype]


@pytest.mark.parametrize("blocks", [None, MatmulBlocks(rows=8, columns=256), MatmulBlocks(rows=50, columns=200)])
def test_blocks(blocks: MatmulBlocks | None):
    assert error("mosaic_tpu", SIZES["ragged"], depth=80, blocks=blocks) < TOLERANCE[jnp.float32]


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_groups(backend: str):
    for seed in random_cases():
        rng = np.random.default_rng(seed)
        rows, experts = int(rng.integers(1, 150)), int(rng.integers(1, 20))
        ends = np.sort(rng.integers(0, rows + 1, experts))
        sizes = np.diff(ends, prepend=0).tolist()
        kind = [(jnp.float32, None), (jnp.int8, None), (E4M3, 64), (jnp.int4, 256)][seed % 4]
        columns = int(rng.integers(1, 300))
        options = {"weight_type": kind[0], "group": kind[1], "zeros": seed % 8 > 3}
        result = error(backend, sizes, rows=rows, columns=columns, depth=512, **options)
        assert result < TOLERANCE[jnp.float32]


def test_what_exceeds_the_rows_is_cut_off():
    x, weights = jnp.ones((4, 8)), jnp.arange(1.0, 4.0)[:, None, None] * jnp.ones((3, 2, 8))
    result = grouped_matmul(x, weights, jnp.array([1, 5, 2], jnp.int32))
    np.testing.assert_allclose(result[:, 0], [8, 16, 16, 16])


def expected_items(sizes: np.ndarray, rows: int, tile_rows: int) -> list[tuple[int, ...]]:
    """(group, tile, low, high) of each item with rows, then (tile,) of each without, one row at a time."""
    held: dict[tuple[int, int], list[int]] = {}
    for row, group in enumerate(np.repeat(np.arange(len(sizes)), sizes)):
        held.setdefault((int(group), row // tile_rows), []).append(row % tile_rows)
    busy = [(*key, min(found), max(found) + 1) for key, found in held.items()]
    idle = set(range(-(-rows // tile_rows))) - {tile for _, tile in held}
    return [*busy, *((tile,) for tile in sorted(idle))]


@pytest.mark.parametrize("tile_rows", [1, 3, 8, 64])
def test_items_are_those_counted_row_by_row(tile_rows: int):
    rows, experts = 37, 9
    rng = np.random.default_rng(tile_rows)
    cut = jax.jit(lambda sizes: group_tiles(sizes, rows, tile_rows))
    for _ in range(40):
        sizes = np.diff(np.sort(rng.choice([0, 5, 8, 16, 24, 36, 37], experts)), prepend=0).astype(np.int32)
        items = cut(sizes)
        busy, count = int(items.busy), int(items.count)
        parts = zip(*(np.asarray(part)[:busy].tolist() for part in items[2:]), strict=True)
        found = [*parts, *((int(tile),) for tile in items.tile[busy:count])]
        assert found == expected_items(sizes, rows, tile_rows)
        assert (np.asarray(items.low)[busy:count] == np.asarray(items.high)[busy:count]).all()
        assert count <= items.tile.shape[0]


def test_the_twin_holds_one_expert_and_one_tile():
    experts, rows, columns, depth = 64, 128, 256, 64
    shapes = [((rows, depth), jnp.float32), ((experts, columns, depth), jnp.int8), ((experts,), jnp.int32)]
    x, weights, sizes = (jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes)
    scales = jax.ShapeDtypeStruct((experts, columns), jnp.float32)
    program = jax.jit(lambda x, w, n, s: grouped_matmul(x, w, n, scales=s)).lower(x, weights, sizes, scales).compile()
    memory: Any = program.memory_analysis()
    expert, result = columns * depth * 4, rows * columns * 4
    assert memory.temp_size_in_bytes < 4 * expert + 4 * result < experts * rows * columns * 4 / 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "cuda"}, "backend 'cuda' is unknown; known are xla, mosaic_tpu"),
        ({"block_sizes": BLOCKS}, "block_sizes belong to mosaic_tpu"),
        ({"x": jnp.ones((4, 8), jnp.int16)}, r"x must be \[T, K\] of .*, not \(4, 8\) of int16"),
        (
            {"x": jnp.ones((4, 8), jnp.float16), "backend": "mosaic_tpu"},
            "x in float16 is for xla alone, not for mosaic_tpu",
        ),
        (
            {"weights": jnp.ones((3, 2, 7))},
            r"weights must be \[E, N, 8\], or packed .*, not \(3, 2, 7\)",
        ),
        (
            {"weights": jnp.ones((3, 2, 8), jnp.int32)},
            "weights must be bfloat16, float16, float32, int8, int4, e4m3, e2m1 or packed, not int32",
        ),
        ({"group_sizes": jnp.ones(2, jnp.int32)}, r"group_sizes must be \(3,\) of int32, not \(2,\) of int32"),
        ({"scales": jnp.ones((3, 2))}, "scales must be given for quantised weights and for no others"),
        ({"weights": jnp.ones((3, 2, 8), jnp.int8)}, "weights are int8"),
        ({"zeros": jnp.ones((3, 2))}, "zeros must be given with scales alone, .* weights are float32"),
        (
            {"weights": jnp.ones((3, 2, 8), jnp.int8), "scales": jnp.ones((3, 2)), "zeros": jnp.ones((3, 2, 2))},
            r"zeros must be \(3, 2\), as scales, not \(3, 2, 2\)",
        ),
        (
            {"weights": jnp.ones((3, 2, 8), jnp.int8), "scales": jnp.ones((3, 2, 3))},
            r"scales must be \(3, 2\) or \(3, 2, a divisor of 8\), not \(3, 2, 3\)",
        ),
    ],
)
def test_errors(change: dict[str, Any], message: str):
    given = {"x": jnp.ones((4, 8)), "weights": jnp.ones((3, 2, 8)), "group_sizes": jnp.ones(3, jnp.int32)}
    with pytest.raises(ValueError, match=message):
        grouped_matmul(**{**given, **change})
