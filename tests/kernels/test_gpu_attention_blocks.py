"""What the `mosaic_gpu` backend takes and refuses, its block sizes, and how it cuts its work: nothing is run."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels import RaggedRows, gpu_blocks, ragged_latent_attention, ragged_paged_attention, unavailable
from jaxinfer_kernels.gpu.attention_blocks import SHARED_BYTES, check_gpu_shapes, shared_bytes
from jaxinfer_kernels.gpu.work_items import work_items
from jaxinfer_kernels.rows import QueryBlocks

from .batches import Batch, Shape, make_batch


@pytest.mark.long
def test_work_is_cut_evenly_and_within_its_bounds():
    """Whatever the lengths are: every tile of every block is in one item, and there is room for all of them."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        heads, programs, least = int(rng.choice([1, 2, 8])), int(rng.choice([4, 264])), int(rng.choice([1, 4]))
        starts = rng.integers(0, 30_000, 9) * rng.integers(0, 2, 9)
        counts = rng.integers(0, 3, 9)
        window = int(rng.integers(1, 5000)) if rng.random() < 0.5 else None
        blocks = QueryBlocks(*(jnp.asarray(x, jnp.int32) for x in (np.arange(9), starts, np.arange(9), counts)))
        items, merges, room = work_items(blocks, window, 64, heads, programs, least)
        items, merges = np.asarray(items), np.asarray(merges)
        used = items[items[:, 3] > 0]
        for row in np.flatnonzero(counts):
            first = max(starts[row] - (window or 1 << 30) + 1, 0) // 64
            mine = used[used[:, 0] == row]
            edges = [first, *mine[:, 5]]
            assert edges[-1] == -(-(starts[row] + counts[row]) // 64)
            assert list(mine[:, 4]) == edges[:-1]
            assert np.ptp(mine[:, 5] - mine[:, 4]) <= 1
            assert (mine[:, 6] >= 0).all() == (len(mine) > 1)
        parts = np.sort(used[used[:, 6] >= 0][:, 6])
        np.testing.assert_array_equal(parts, np.arange(len(parts)))
        assert merges[:, 3].sum() == len(parts) <= room


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": jnp.float32}, "q of mosaic_gpu must be bfloat16 or float16"),
        ({"pages": jnp.float16}, "kv_pages of mosaic_gpu must be bfloat16, int8 or float8_e4m3fn, not float16"),
        ({"group": 65}, "at most 64 heads a KV head, not 65"),
        ({"key_dim": 72, "value_dim": 72}, "a multiple of 16 up to 128, or each a multiple of 64 up to 256, not 72"),
        ({"key_dim": 160, "value_dim": 160}, "a multiple of 64 up to 256, not 160 and 160"),
        ({"key_dim": 96}, "not 96 and 128"),
        ({"key_dim": 512, "value_dim": 512}, "up to 256, not 512"),
        (
            {"pages": jnp.int8, "value_dim": 256},
            "of 256 in pages of 8 bits must have keys of 192 or 256, .* not 128",
        ),
        (
            {"pages": jnp.float8_e4m3fn, "key_dim": 64, "value_dim": 256},
            "of 256 in pages of 8 bits must have keys of 192 or 256, .* not 64",
        ),
        ({"page": 48}, "a power of two of tokens, at least 8, not 48"),
        ({"page": 4}, "at least 8, not 4"),
    ],
)
def test_shapes_that_are_refused(change: dict, message: str):
    call = {"q": jnp.bfloat16, "pages": jnp.bfloat16, "group": 4, "key_dim": 128, "value_dim": 128, "page": 64}
    check_gpu_shapes(**call)
    with pytest.raises(ValueError, match=message):
        check_gpu_shapes(**call | change)


@pytest.mark.parametrize(
    ("dims", "pages"),
    [
        ((192, 128), jnp.float8_e4m3fn),
        ((128, 64), jnp.bfloat16),
        ((128, 256), jnp.bfloat16),
        ((192, 256), jnp.float8_e4m3fn),
        ((256, 256), jnp.int8),
    ],
)
def test_values_of_another_size_are_taken(dims: tuple[int, int], pages: Any):
    check_gpu_shapes(jnp.bfloat16, pages, 4, *dims, 64)


@pytest.mark.parametrize(
    "change",
    [{"keys": 32}, {"long_keys": 256}, {"stages": 1}, {"long_stages": 0}, {"warpgroups": 3}, {"programs": 0}],
)
def test_bad_block_sizes(change: dict):
    with pytest.raises(ValueError, match=f"{next(iter(change))} must be"):
        dataclasses.replace(gpu_blocks(128, 128), **change)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("dims", [(64, 64), (80, 80), (96, 96), (128, 128), (128, 64), (192, 128), (256, 256)])
def test_default_sizes_fit_shared_memory(dims: tuple[int, int], narrow: bool):
    sizes = gpu_blocks(*dims, narrow)
    fixed, stage = shared_bytes(*dims, sizes.keys, 1, narrow)
    assert (fixed + sizes.stages * stage) * (sizes.programs // 132) <= SHARED_BYTES
    fixed, stage = shared_bytes(*dims, sizes.long_keys, sizes.warpgroups, narrow)
    assert fixed + sizes.long_stages * stage <= SHARED_BYTES


@pytest.mark.parametrize(
    ("dims", "keys"),
    [
        ((64, 64), 128),
        ((128, 128), 128),
        ((64, 128), 128),
        ((80, 80), 64),
        ((96, 96), 64),
        ((128, 64), 64),
        ((192, 128), 64),
        ((256, 256), 64),
    ],
)
def test_keys_of_a_long_tile(dims: tuple[int, int], keys: int):
    """With tiles of 128 keys the programs for 80, 96, 112 and 128 / 64 spilled registers."""
    assert gpu_blocks(*dims).long_keys == keys


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ((0, 10, 2), r"mosaic_gpu needs jax 0\.11 or newer, and thus Python 3\.12"),
        ((0, 13, 0), r"mosaic_gpu is not tried with jax .*; jax 0\.11 and 0\.12 are known to work"),
    ],
)
def test_another_jax_is_told_why(version: tuple[int, ...], reason: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "__version_info__", version)
    assert unavailable("xla") is None
    batch: Batch = make_batch(np.random.default_rng(0), [(5, 1)], Shape(4, 2, 64, 16), layer=0, short_len=1)
    q, k, v, pages = (jnp.asarray(x, jnp.bfloat16) for x in batch[:4])
    with pytest.raises(ValueError, match=reason):
        ragged_paged_attention(
            q, k, v, pages, 0, batch.rows, short_rows=1, short_len=1, scale=1.0, backend="mosaic_gpu"
        )  # fmt: skip


def test_latent_attention_is_refused():
    rows = RaggedRows(jnp.ones((1, 1), jnp.int32), *jnp.array([[0], [0], [1]], jnp.int32))
    q, latent, pages = jnp.ones((1, 4, 64)), jnp.ones((1, 64)), jnp.ones((1, 2, 16, 64))
    with pytest.raises(ValueError, match="must be xla or mosaic_tpu or native, not mosaic_gpu"):
        ragged_latent_attention(
            q, latent, pages, 0, rows, value_dim=32, short_rows=1, short_len=1, scale=1.0, backend="mosaic_gpu"
        )
