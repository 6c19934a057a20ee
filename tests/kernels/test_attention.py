"""The `xla` backend against a float64 oracle."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels import BlockSizes, KVLayout, ragged_paged_attention

from tests.draws import fixed_and_random_cases

from .batches import Batch, Shape, make_batch
from .oracle import attend, write

SMALL = BlockSizes(keys=8, short_tiles=2, query_tokens=4, query_blocks=1)
WIDE = BlockSizes(keys=12, short_tiles=9, query_tokens=8, query_blocks=3)

MIXES = {
    "decode": [(5, 1), (0, 1), (31, 1), (7, 1), (8, 1)],
    "empty_rows": [(0, 0), (9, 1), (0, 0), (0, 5), (0, 0)],
    "mixed": [(3, 1), (40, 1), (0, 17), (12, 9), (4, 4), (0, 0)],
    "page_edges": [(3, 1), (4, 1), (7, 5), (8, 4), (0, 4), (0, 8), (4, 12)],
    "one_long_among_short": [(90, 1), (1, 1), (2, 1), (0, 1), (60, 33)],
    "one_token": [(0, 1)],
    "prefill": [(0, 29)],
    "short_of_three": [(2, 3), (5, 2), (0, 1), (11, 3), (6, 20)],
}


def run(batch: Batch, layer: int, *, short_len: int, dtype=jnp.float32, traced_rows: bool = True, **options):
    """Output and pages of one jitted call, as float32 NumPy arrays."""

    def call(q, k, v, kv_pages, rows, short_rows, layer):
        return ragged_paged_attention(
            q, k, v, kv_pages, layer, rows, short_rows=short_rows, short_len=short_len, **options
        )

    arrays = [jnp.asarray(x, dtype) for x in batch[:4]]
    static = () if traced_rows else (5,)
    out, pages = jax.jit(call, static_argnums=static)(*arrays, batch.rows, batch.short_rows, layer)
    return np.asarray(out, np.float32), np.asarray(pages, np.float32)


def expect(batch: Batch, layer: int, dtype=jnp.float32, **options):
    """What the oracle says, from inputs rounded to `dtype`."""
    q, k, v, pages = (np.asarray(jnp.asarray(x, dtype), np.float64) for x in batch[:4])
    pages = write(pages, layer, k, v, batch.rows)
    return attend(q, pages, layer, batch.rows, **options), pages


@pytest.mark.parametrize(
    "sizes", [pytest.param(SMALL, id="small", marks=pytest.mark.smoke), pytest.param(WIDE, id="wide")]
)
@pytest.mark.parametrize("mix", MIXES)
def test_equals_oracle(mix: str, sizes: BlockSizes):
    short_len = 3 if mix == "short_of_three" else 1
    batch = make_batch(np.random.default_rng(0), MIXES[mix], Shape(), layer=1, short_len=short_len)
    want, want_pages = expect(batch, 1, scale=0.3)
    out, pages = run(batch, 1, short_len=short_len, scale=0.3, block_sizes=sizes)
    np.testing.assert_allclose(out, want, atol=1e-5)
    np.testing.assert_array_equal(pages[:, :, 1:], want_pages[:, :, 1:].astype(np.float32))


@pytest.mark.few(3)
@pytest.mark.parametrize("sizes", [SMALL, WIDE], ids=["small", "wide"])
@pytest.mark.parametrize(
    "options",
    [
        {"window": 6},
        {"window": 1},
        {"window": 13, "soft_cap": 2.0},
        {"soft_cap": 0.7},
        {"sinks": np.array([0.5, -1.0, 3.0, 0.0], np.float32)},
        {"window": 5, "sinks": np.array([0.5, -1.0, 3.0, 0.0], np.float32)},
    ],
    ids=lambda o: "-".join(o),
)
def test_options_equal_oracle(options: dict, sizes: BlockSizes):
    window = options.get("window")
    batch = make_batch(np.random.default_rng(1), MIXES["mixed"], Shape(), layer=0, short_len=1, window=window)
    want, _ = expect(batch, 0, scale=0.5, **options)
    out, _ = run(batch, 0, short_len=1, scale=0.5, block_sizes=sizes, **options)
    np.testing.assert_allclose(out, want, atol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize(("q_heads", "kv_heads", "dim"), [(4, 4, 8), (9, 3, 64), (8, 1, 128), (14, 2, 64)])
def test_heads_and_dims(q_heads: int, kv_heads: int, dim: int):
    shape = Shape(q_heads, kv_heads, dim, page=16, layers=1)
    batch = make_batch(np.random.default_rng(2), MIXES["mixed"], shape, layer=0, short_len=1)
    scale = dim**-0.5
    want, _ = expect(batch, 0, scale=scale)
    out, _ = run(batch, 0, short_len=1, scale=scale)
    np.testing.assert_allclose(out, want, atol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("seeds", fixed_and_random_cases(6))
def test_random_batches(seeds: Iterable[int]):
    for seed in seeds:
        check_random_batch(seed)


def check_random_batch(seed: int):
    rng = np.random.default_rng(100 + seed)
    short_len = int(rng.integers(1, 4))
    lengths = [(int(rng.integers(0, 50)), int(rng.choice([0, 1, 1, 2, 3, 7, 18]))) for _ in range(rng.integers(1, 9))]
    window = int(rng.integers(1, 40)) if rng.random() < 0.4 else None
    shape = Shape(q_heads=6, kv_heads=int(rng.choice([1, 2, 3, 6])), page=int(rng.choice([1, 2, 4, 16])), layers=3)
    batch = make_batch(rng, lengths, shape, layer=2, short_len=short_len, window=window)
    want, _ = expect(batch, 2, scale=0.4, window=window)
    sizes = BlockSizes(*(int(rng.integers(1, 20)) for _ in range(4)))
    out, _ = run(batch, 2, short_len=short_len, scale=0.4, window=window, block_sizes=sizes)
    np.testing.assert_allclose(out, want, atol=1e-5)


def test_bfloat16():
    batch = make_batch(np.random.default_rng(3), MIXES["mixed"], Shape(dim=64, page=16), layer=0, short_len=1)
    want, _ = expect(batch, 0, jnp.bfloat16, scale=0.125)
    out, _ = run(batch, 0, short_len=1, dtype=jnp.bfloat16, scale=0.125)
    assert np.abs(out - want).max() < 1e-2 * np.abs(want).max()


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.int8])
def test_quantised_pages(dtype):
    batch = make_batch(np.random.default_rng(4), [(0, 1), (0, 13)], Shape(), layer=0, short_len=1)
    k_scale, v_scale = (0.03, 0.04) if dtype == jnp.int8 else (0.01, 0.02)
    pages = jnp.zeros(batch.kv_pages.shape, dtype)

    def rounded(x, scale):
        scaled = jnp.asarray(x) / scale
        return np.asarray((jnp.round(scaled) if dtype == jnp.int8 else scaled).astype(dtype), np.float64) * scale

    want_pages = write(np.zeros(pages.shape), 0, rounded(batch.k, k_scale), rounded(batch.v, v_scale), batch.rows)
    want = attend(batch.q, want_pages, 0, batch.rows, scale=0.3)
    q, k, v = map(jnp.asarray, batch[:3])
    out, _ = ragged_paged_attention(
        q,
        k,
        v,
        pages,
        0,
        batch.rows,
        short_rows=batch.short_rows,
        short_len=1,
        scale=0.3,
        kv_scale=(k_scale, v_scale),
    )
    np.testing.assert_allclose(out, want, atol=1e-5)


def test_values_out_of_the_range_of_quantised_pages_saturate():
    batch = make_batch(np.random.default_rng(5), [(0, 1)], Shape(), layer=0, short_len=1)
    pages = jnp.zeros(batch.kv_pages.shape, jnp.float8_e4m3fn)
    big = jnp.full_like(batch.v, 1e6)
    out, _ = ragged_paged_attention(
        jnp.asarray(batch.q), big, big, pages, 0, batch.rows, short_rows=1, short_len=1, scale=1.0, kv_scale=(1.0, 1.0)
    )
    np.testing.assert_array_equal(out[0], 448.0)


def test_static_short_rows_equal_traced():
    batch = make_batch(np.random.default_rng(6), MIXES["decode"], Shape(), layer=0, short_len=1, tokens=5)
    traced, _ = run(batch, 0, short_len=1, scale=0.3)
    static, _ = run(batch, 0, short_len=1, scale=0.3, traced_rows=False)
    np.testing.assert_array_equal(static, traced)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "none"}, "backend 'none' is unknown"),
        (
            {"backend": "mosaic_tpu"},
            "backend for pages in layout tokens must be xla or mosaic_gpu or native, not mosaic_tpu",
        ),
        ({"layout": KVLayout.LATENT}, "layout latent has one row for all heads"),
        ({"short_len": 0}, "short_len must be at least 1"),
        ({"short_rows": 3}, "short_rows must be 0 to 1"),
        ({"window": 0}, "window must be at least 1, not 0"),
        ({"sinks": np.zeros(2, np.float32)}, r"sinks must be \[4\], not \(2,\)"),
    ],
)
def test_bad_arguments(change: dict, message: str):
    batch = make_batch(np.random.default_rng(7), [(0, 1)], Shape(), layer=0, short_len=1)
    q, k, v, pages = map(jnp.asarray, batch[:4])
    options: dict[str, Any] = {"short_rows": 1, "short_len": 1, "scale": 1.0} | change
    with pytest.raises(ValueError, match=message):
        ragged_paged_attention(q, k, v, pages, 0, batch.rows, **options)
