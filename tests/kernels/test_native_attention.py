"""The `native` backend against a float64 oracle, and against `xla` for pages of short types."""

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels import RaggedRows, ragged_latent_attention, ragged_paged_attention

from tests.draws import fixed_and_random_cases
from tests.native import needs_native

from .batches import MIXES, Batch, Shape, make_batch
from .oracle import attend, write

pytestmark = needs_native

LENGTHS = MIXES | {
    "contexts_over_tile_edges": [(0, 1), (14, 1), (15, 1), (16, 1), (62, 1), (63, 1), (64, 1), (127, 1), (128, 1)],
    "chunks_over_tile_edges": [(60, 9), (64, 3), (63, 1), (1, 63), (0, 64), (0, 65), (120, 30)],
    "one_row_of_5000": [(4999, 1), (0, 0), (15, 1)],
    "nothing": [(0, 0), (7, 0)],
}
PAGES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8")
SINKS = np.array([0.5, -1.0, 3.0, 0.0], np.float32)


def run(batch: Batch, layer: int, *, dtype: Any = jnp.float32, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Output and pages of one jitted call, as float32; arrays are of `dtype`."""

    def call(q, k, v, kv_pages, rows, layer):
        named = {"short_rows": 0, "short_len": 1, "scale": 0.3, "backend": "native"} | options
        return ragged_paged_attention(q, k, v, kv_pages, layer, rows, **named)

    arrays = [jnp.asarray(x, dtype) for x in batch[:4]]
    out, pages = jax.jit(call)(*arrays, batch.rows, layer)
    return np.asarray(out, np.float32), np.asarray(pages, np.float32)


def expect(batch: Batch, layer: int, dtype: Any = jnp.float32, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """What the oracle says, of inputs rounded to `dtype`."""
    q, k, v, pages = (np.asarray(jnp.asarray(x, dtype), np.float64) for x in batch[:4])
    pages = write(pages, layer, k, v, batch.rows)
    return attend(q, pages, layer, batch.rows, value_dim=v.shape[-1], **({"scale": 0.3} | options)), pages


def check(batch: Batch, layer: int, *, atol: float = 1e-5, **options: Any) -> None:
    want, want_pages = expect(batch, layer, **options)
    out, pages = run(batch, layer, **options)
    np.testing.assert_allclose(out, want, atol=atol)
    np.testing.assert_array_equal(pages, want_pages.astype(np.float32))


@pytest.mark.smoke
@pytest.mark.parametrize("mix", LENGTHS)
def test_equals_oracle(mix: str) -> None:
    check(make_batch(np.random.default_rng(0), LENGTHS[mix], Shape(), layer=1, short_len=1), 1)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 6},
        {"window": 1},
        {"window": 64},
        {"window": 13, "soft_cap": 2.0},
        {"soft_cap": 0.7},
        {"soft_cap": 30.0},
        {"sinks": SINKS},
        {"window": 5, "sinks": SINKS},
    ],
    ids=str,
)
@pytest.mark.parametrize("mix", ["mixed", "chunks_over_tile_edges", "one_long_among_short"])
def test_options_equal_oracle(mix: str, options: dict[str, Any]) -> None:
    window = options.get("window")
    batch = make_batch(np.random.default_rng(1), LENGTHS[mix], Shape(), layer=0, short_len=1, window=window)
    check(batch, 0, **options)


@pytest.mark.few(12)
@pytest.mark.parametrize("dim", [1, 8, 40, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 12])
def test_heads_and_dims(group: int, dim: int) -> None:
    shape = Shape(2 * group, 2, dim, page=16, layers=1)
    check(make_batch(np.random.default_rng(2), MIXES["mixed"], shape, layer=0, short_len=1), 0, scale=dim**-0.5)


@pytest.mark.parametrize(("dim", "value_dim"), [(24, 16), (192, 128), (33, 7)])
def test_values_smaller_than_keys(dim: int, value_dim: int) -> None:
    shape = Shape(6, 3, dim, page=8, layers=2, value_dim=value_dim)
    batch = make_batch(np.random.default_rng(3), MIXES["mixed"], shape, layer=1, short_len=1)
    want, _ = expect(batch, 1)
    out, pages = run(batch, 1)
    np.testing.assert_allclose(out, want, atol=1e-5)
    _, others = run(batch, 1, backend="xla")
    np.testing.assert_array_equal(pages[:, :, 1:], others[:, :, 1:])


@pytest.mark.parametrize("page", [1, 3, 5, 64, 100])
def test_page_sizes(page: int) -> None:
    check(make_batch(np.random.default_rng(4), MIXES["mixed"], Shape(page=page), layer=1, short_len=1), 1)


@pytest.mark.parametrize("seeds", fixed_and_random_cases(8))
def test_random_batches(seeds: Iterable[int]) -> None:
    for seed in seeds:
        rng = np.random.default_rng(100 + seed)
        lengths = [(int(rng.integers(0, 200)), int(rng.choice([0, 1, 1, 2, 7, 40]))) for _ in range(rng.integers(1, 9))]
        kv_heads, dim = int(rng.integers(1, 4)), int(rng.integers(1, 140))
        shape = Shape(kv_heads * int(rng.integers(1, 10)), kv_heads, dim, int(rng.integers(1, 40)), layers=3)
        window = int(rng.integers(1, 150)) if rng.random() < 0.5 else None
        batch = make_batch(rng, lengths, shape, layer=2, short_len=1, window=window)
        sinks = rng.standard_normal(shape.q_heads).astype(np.float32) if rng.random() < 0.5 else None
        check(batch, 2, window=window, sinks=sinks, soft_cap=float(rng.choice([0.5, 20])) if seed % 2 else None)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_short_queries(dtype: Any) -> None:
    batch = make_batch(np.random.default_rng(5), MIXES["mixed"], Shape(dim=64, page=16), layer=0, short_len=1)
    want, _ = expect(batch, 0, dtype, scale=0.125)
    out, _ = run(batch, 0, dtype=dtype, scale=0.125)
    np.testing.assert_allclose(out, want, rtol=2**-8, atol=1e-6)  # but for the result's own rounding it is exact


@pytest.mark.parametrize("as_bits", [False, True])
@pytest.mark.parametrize("name", PAGES)
def test_pages_of_every_type_equal_xla(name: str, as_bits: bool) -> None:
    """All values that a type of 8 bits has, and many of those of 16, subnormals among them."""
    if as_bits and name in ("float32", "int8"):
        pytest.skip("held as it is")
    dtype, rng = jnp.dtype(name), np.random.default_rng(6)
    shape = Shape(q_heads=6, kv_heads=2, dim=40, page=16)
    batch = make_batch(rng, MIXES["mixed"], shape, layer=1, short_len=1)
    bits = np.dtype(f"uint{8 * dtype.itemsize}")
    random = rng.integers(0, np.iinfo(bits).max, batch.kv_pages.shape, bits, endpoint=True).view(dtype)
    wide = random.astype(np.float32)
    pages = np.where(np.abs(wide) < 1e3, random, np.ones_like(random))  # neither NaN nor infinite
    held = jnp.asarray(pages.view(bits) if as_bits else pages)
    q, k, v = map(jnp.asarray, batch[:3])
    scales = (0.01, 0.02) if dtype.itemsize == 1 else None

    def call(backend: str) -> tuple[np.ndarray, np.ndarray]:
        out, pages = ragged_paged_attention(
            q,
            k,
            v,
            held,
            1,
            batch.rows,
            short_rows=batch.short_rows,
            short_len=1,
            scale=0.003,
            kv_scale=scales,
            kv_dtype=dtype,
            backend=backend,
        )
        return np.asarray(out), np.asarray(pages).view(bits)

    (out, written), (want, want_written) = call("native"), call("xla")
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    np.testing.assert_array_equal(written[:, :, 1:], want_written[:, :, 1:])


@pytest.mark.parametrize("name", ["float16", "float8_e4m3fn", "float8_e5m2", "int8", "bfloat16"])
def test_every_value_is_widened_exactly(name: str) -> None:
    """One key: the result is its value."""
    dtype = jnp.dtype(name)
    bits = np.arange(2 ** (8 * dtype.itemsize), dtype=f"uint{8 * dtype.itemsize}")
    values = bits.view(dtype).reshape(-1, 1, 64)
    rows, count = RaggedRows(*_alone(len(values))), len(values)
    q, pages = jnp.zeros((count, 1, 64)), jnp.zeros((1, 2, count + 1, 1, 1, 64), dtype)
    options: dict[str, Any] = {"short_rows": count, "short_len": 1, "scale": 1.0, "kv_dtype": dtype}
    v = jax.lax.bitcast_convert_type(jnp.asarray(bits.reshape(values.shape)), dtype)
    out, _ = ragged_paged_attention(q, jnp.zeros_like(v), v, pages, 0, rows, backend="native", **options)
    want = values.astype(np.float32)
    want = np.where(np.abs(want) < np.finfo(np.float32).tiny, 0, want)  # XLA's threads flush subnormals to zero
    np.testing.assert_array_equal(np.asarray(out), want)


def _alone(count: int) -> list[jax.Array]:
    """Rows of one token each, with a page each."""
    index = jnp.arange(count, dtype=jnp.int32)
    return [1 + index[:, None], jnp.zeros_like(index), index, jnp.ones_like(index)]


@pytest.mark.parametrize("options", [{}, {"window": 70, "soft_cap": 3.0, "sinks": SINKS}], ids=["plain", "options"])
@pytest.mark.parametrize("sizes", [[1] * 150, [64, 64, 22], [7, 100, 43], [63, 2, 85]], ids=["1", "64", "7", "63"])
def test_chunks_of_a_prompt_have_the_bits_of_the_whole(sizes: list[int], options: dict[str, Any]) -> None:
    shape = Shape(dim=40, page=16)
    whole = make_batch(np.random.default_rng(7), [(0, 150)], shape, layer=0, short_len=1, tokens=150)
    want, _ = run(whole, 0, **options)
    pages, start, parts = whole.kv_pages, 0, []
    for size in sizes:
        tokens = slice(start, start + size)
        starts = RaggedRows(whole.rows.page_table, *jnp.array([[start], [0], [size]], jnp.int32))
        part = Batch(whole.q[tokens], whole.k[tokens], whole.v[tokens], pages, starts, 0)
        out, pages = run(part, 0, **options)
        parts.append(out)
        start += size
    np.testing.assert_array_equal(np.concatenate(parts), want)


def test_other_rows_change_no_bits() -> None:
    batch = make_batch(np.random.default_rng(8), LENGTHS["chunks_over_tile_edges"], Shape(), layer=0, short_len=1)
    want, _ = run(batch, 0)
    for row, (offset, count) in enumerate(zip(*map(np.asarray, batch.rows[2:]), strict=True)):
        others = batch.rows._replace(count=jnp.zeros_like(batch.rows.count).at[row].set(count))
        out, _ = run(batch._replace(rows=others), 0)
        np.testing.assert_array_equal(out[offset : offset + count], want[offset : offset + count])
        assert not out[:offset].any()


def test_threads_change_no_bits() -> None:
    def digest(threads: int) -> str:
        command = [sys.executable, "-m", "tests.kernels.native_bits", "attention"]
        return subprocess.check_output(command, env=os.environ | {"NPROC": str(threads)}, text=True)

    assert digest(1) == digest(2) == digest(5)


@pytest.mark.parametrize("window", [None, 20])
def test_nan_reaches_those_rows_that_see_it(window: int | None) -> None:
    batch = make_batch(np.random.default_rng(9), [(70, 1), (90, 1), (30, 50)], Shape(), layer=0, short_len=1)
    pages, want = batch.kv_pages.copy(), run(batch, 0, window=window)[0]
    page, slot = np.asarray(batch.rows.page_table)[1, 88 // 4], 88 % 4
    pages[0, 1, page, slot] = np.nan
    behind = np.asarray(batch.rows.page_table)[2, 8 // 4]
    pages[0, :, behind, 0] = np.nan
    out, _ = run(batch._replace(kv_pages=pages), 0, window=window)
    offset = np.asarray(batch.rows.offset)
    assert np.isnan(out[offset[1]]).all()
    assert np.isnan(out[offset[2] : offset[2] + 50]).all() == (window is None)
    np.testing.assert_array_equal(out[offset[0]], want[offset[0]])
    if window is not None:
        np.testing.assert_array_equal(out[offset[2] : offset[2] + 50], want[offset[2] : offset[2] + 50])


def test_a_later_key_that_is_nan_reaches_no_earlier_token() -> None:
    batch = make_batch(np.random.default_rng(10), [(0, 50)], Shape(), layer=0, short_len=1, tokens=50)
    want, _ = run(batch, 0)
    batch.v[20] = np.nan
    batch.k[30] = np.nan
    out, _ = run(batch, 0)
    np.testing.assert_array_equal(out[:20], want[:20])
    assert np.isnan(out[20:]).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("heads", "dim", "value_dim", "width"), [(5, 24, 16, 40), (16, 576, 512, 576), (3, 9, 9, 9)])
def test_latent(heads: int, dim: int, value_dim: int, width: int, dtype: Any) -> None:
    shape = Shape(heads, 1, dim, page=8, layers=2)
    batch = make_batch(np.random.default_rng(11), MIXES["mixed"], shape, layer=1, short_len=1)
    batch = batch._replace(v=batch.k)
    both = batch.kv_pages.copy()
    both[:, 1] = both[:, 0]
    want, want_pages = expect(batch._replace(kv_pages=both), 1, dtype, scale=dim**-0.5)
    held = np.zeros((*both.shape[:1], *both.shape[2:4], width), np.float32)
    held[..., :dim] = both[:, 0, :, :, 0]
    q, latent, kv_pages = (jnp.asarray(x, dtype) for x in (batch.q, batch.k[:, 0], held))
    out, pages = ragged_latent_attention(
        q,
        latent,
        kv_pages,
        1,
        batch.rows,
        value_dim=value_dim,
        short_rows=0,
        short_len=1,
        scale=dim**-0.5,
        backend="native",
    )
    tolerance = 1e-5 if dtype == jnp.float32 else 2**-7
    np.testing.assert_allclose(np.asarray(out, np.float32), want[..., :value_dim], rtol=tolerance, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(pages, np.float32)[..., :dim], want_pages[:, 0, :, :, 0])
    assert not np.asarray(pages, np.float32)[..., dim:].any()


def test_large_scores() -> None:
    batch = make_batch(np.random.default_rng(12), MIXES["mixed"], Shape(), layer=0, short_len=1)
    check(batch, 0, scale=300.0, atol=1e-3)  # a score of 3,000 has an error of 1e-4
    check(batch, 0, scale=0.0)


@pytest.mark.parametrize("page", [-5, 10_000])
def test_pages_that_are_not_there_are_neither_read_nor_written(page: int) -> None:
    batch = make_batch(np.random.default_rng(13), [(5, 1), (9, 3)], Shape(), layer=0, short_len=1)
    want, _ = run(batch, 0)
    wrong = jnp.asarray(batch.rows.page_table).at[1].set(page)
    out, pages = run(batch._replace(rows=batch.rows._replace(page_table=wrong)), 0)
    np.testing.assert_array_equal(out[0], want[0])
    untouched = ~np.isin(np.arange(pages.shape[2]), np.asarray(batch.rows.page_table)[0])
    np.testing.assert_array_equal(pages[:, :, untouched], batch.kv_pages[:, :, untouched])


def test_rows_longer_than_the_table_or_the_step_are_cut() -> None:
    batch = make_batch(np.random.default_rng(14), [(5, 1), (0, 3)], Shape(), layer=0, short_len=1)
    want, _ = run(batch, 0)
    rows = batch.rows._replace(start=batch.rows.start.at[1].set(1000), count=batch.rows.count.at[1].set(10**6))
    out, _ = run(batch._replace(rows=rows), 0)
    np.testing.assert_array_equal(out[0], want[0])
    assert out.shape == want.shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_sizes": object()}, "block_sizes must be None for backend native"),
        ({"kv_pages": np.zeros((1, 2, 3, 4, 2, 8), np.uint32)}, "kv_pages of native must be float32, bfloat16"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    batch = make_batch(np.random.default_rng(15), [(0, 1)], Shape(), layer=0, short_len=1)
    given: dict[str, Any] = dict(zip(("q", "k", "v", "kv_pages"), map(jnp.asarray, batch[:4]), strict=True))
    given |= {"layer": 0, "rows": batch.rows, "short_rows": 1, "short_len": 1, "scale": 1.0, "backend": "native"}
    with pytest.raises(ValueError, match=message):
        jax.block_until_ready(ragged_paged_attention(**given | change))


def test_a_layer_that_is_not_there() -> None:
    batch = make_batch(np.random.default_rng(15), [(0, 1)], Shape(), layer=0, short_len=1)
    with pytest.raises(RuntimeError, match="attention: there is no layer 7"):
        run(batch, 7)
