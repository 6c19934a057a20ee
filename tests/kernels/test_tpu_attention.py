"""The `mosaic_tpu` backend in the TPU interpreter, and `xla` on the same pages, against a float64 oracle."""

from collections.abc import Iterable
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels import BlockSizes, KVLayout, ragged_latent_attention, ragged_paged_attention
from jaxinfer_kernels.tpu import attention_copies, attention_softmax
from jaxinfer_kernels.tpu.attention_blocks import TpuBlocks

from tests.draws import fixed_and_random_cases
from tests.turns import one_of

from .batches import MIXES, Batch, Shape, from_layout, in_layout, make_batch
from .interpreter import skip_on_tpu, tpu_interpreter
from .oracle import attend, write

HEADS = KVLayout.HEADS
TOLERANCE = {jnp.float32: 1e-5, jnp.bfloat16: 1e-2}


def run(batch: Batch, backend: str, *, layer: int, short_len: int, dtype=jnp.float32, traced=True, **options):
    """Output, and K and V of the pages after one jitted call over the HEADS layout, as float32."""
    value_dim = batch.v.shape[-1]
    pages = jnp.asarray(in_layout(HEADS, batch.kv_pages, value_dim), options.pop("kv_dtype", dtype))

    def call(q, k, v, pages, rows, short_rows):
        return ragged_paged_attention(
            q, k, v, pages, layer, rows, short_rows=short_rows, short_len=short_len, backend=backend, layout=HEADS,
            **options,
        )  # fmt: skip

    arrays = [jnp.asarray(x, dtype) for x in batch[:3]]
    program = jax.jit(call, static_argnums=() if traced else (5,))
    if backend == "xla":
        out, pages = program(*arrays, pages, batch.rows, batch.short_rows)
    else:
        with tpu_interpreter():
            out, pages = program(*arrays, pages, batch.rows, batch.short_rows)
            out = np.asarray(out)
    kept = from_layout(HEADS, np.asarray(pages, np.float32), batch.k.shape[-1], value_dim)
    return np.asarray(out, np.float32), kept


def check(batch: Batch, backend: str, *, layer: int, short_len: int, dtype=jnp.float32, sizes: Any = None, **options):
    """Output and pages are the oracle's, from inputs rounded to `dtype`."""
    q, k, v, pages = (np.asarray(jnp.asarray(x, dtype), np.float64) for x in batch[:4])
    pages = write(pages, layer, k, v, batch.rows)
    want = attend(q, pages, layer, batch.rows, value_dim=v.shape[-1], **options)
    out, kept = run(batch, backend, layer=layer, short_len=short_len, dtype=dtype, block_sizes=sizes, **options)
    assert np.abs(out - want).max() <= TOLERANCE[dtype] * max(1.0, np.abs(want).max())
    for got, side in zip(kept, from_layout(KVLayout.TOKENS, pages, k.shape[-1], v.shape[-1]), strict=True):
        np.testing.assert_array_equal(got[:, 1:], side[:, 1:].astype(np.float32))


SIZES = {"mosaic_tpu": TpuBlocks(32, 16), "xla": BlockSizes(32, 3, 16, 2)}


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", SIZES)
@pytest.mark.parametrize(
    "options",
    [
        {"window": 6},
        {"window": 1},
        {"window": 33, "soft_cap": 2.0},
        {"sinks": np.array([0.5, -1.0, 3.0, 0.0], np.float32)},
        {"window": 20, "sinks": np.array([0.5, -1.0, 3.0, 0.0], np.float32)},
    ],
    ids=lambda o: "-".join(o),
)
def test_options_equal_oracle(options: dict, backend: str):
    window = options.get("window")
    batch = make_batch(
        np.random.default_rng(1), MIXES["mixed"], Shape(4, 2, 64, 16), layer=0, short_len=1, window=window
    )
    check(batch, backend, layer=0, short_len=1, sizes=SIZES[backend], scale=0.2, **options)


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", SIZES)
@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "dim", "value_dim", "page"),
    one_of(
        4,
        [
            (2, 2, 64, 64, 16),
            (14, 2, 64, 64, 32),
            (3, 1, 80, 80, 16),
            (8, 1, 96, 96, 64),
            (4, 2, 128, 128, 128),
            (16, 1, 128, 128, 16),
            (4, 2, 192, 128, 32),
            (5, 1, 256, 256, 256),
        ],
    ),
)
def test_heads_dims_and_pages(q_heads: int, kv_heads: int, dim: int, value_dim: int, page: int, backend: str):
    shape = Shape(q_heads, kv_heads, dim, page, 1, value_dim)
    lengths = [(page - 1, 1), (page, 1), (3, 1), (2, page + 3)]
    batch = make_batch(np.random.default_rng(2), lengths, shape, layer=0, short_len=1)
    check(batch, backend, layer=0, short_len=1, scale=dim**-0.5)


class Kind(NamedTuple):
    """What a program is compiled for; batches of one kind share it."""

    shape: Shape
    dtype: Any
    short_len: int
    window: int | None
    soft_cap: float | None
    sinks: tuple[float, ...] | None
    sizes: TpuBlocks | BlockSizes
    backend: str = "mosaic_tpu"
    rows: int = 6
    tokens: int = 64
    longest: int = 150


def random_kind(number: int) -> Kind:
    rng = np.random.default_rng(1000 + number)
    kv_heads, group = int(rng.choice([1, 2, 3])), int(rng.choice([1, 2, 4, 7]))
    sinks = tuple(rng.standard_normal(kv_heads * group).tolist()) if rng.random() < 0.3 else None
    return Kind(
        Shape(kv_heads * group, kv_heads, int(rng.choice([8, 64, 72, 128])), int(rng.choice([16, 32])), 2),
        [jnp.float32, jnp.bfloat16][number % 2],
        int(rng.integers(1, 5)),
        int(rng.integers(1, 60)) if rng.random() < 0.5 else None,
        1.5 if rng.random() < 0.3 else None,
        sinks,
        TpuBlocks(int(rng.choice([16, 64, 128])), int(rng.choice([16, 32]))),
    )


@cache
def program_of(kind: Kind) -> Any:
    """One compiled call of layer 1."""
    sinks = None if kind.sinks is None else jnp.asarray(kind.sinks, jnp.float32)

    def call(q, k, v, pages, rows, short_rows):
        return ragged_paged_attention(
            q, k, v, pages, 1, rows, short_rows=short_rows, short_len=kind.short_len, scale=kind.shape.dim**-0.5,
            window=kind.window, soft_cap=kind.soft_cap, sinks=sinks, backend=kind.backend, layout=HEADS,
            block_sizes=kind.sizes,
        )  # fmt: skip

    return jax.jit(call)


@pytest.mark.few(1)
@pytest.mark.parametrize("seeds", fixed_and_random_cases(20, by_default=6))
def test_random_batches(seeds: Iterable[int]):
    for seed in seeds:
        check_random_batch(seed)


def check_random_batch(seed: int):
    rng, kind = np.random.default_rng(100 + seed), random_kind(seed % 8)
    counts = [int(rng.choice([0, 1, 1, 2, 3, 4, 7, 18, 40])) for _ in range(kind.rows)]
    while sum(counts) > kind.tokens:
        counts[int(np.argmax(counts))] = 1
    check_kind(kind, [(int(rng.integers(0, 110)), count) for count in counts], rng)


def check_kind(kind: Kind, lengths: list[tuple[int, int]], rng: np.random.Generator):
    """Output and pages are the oracle's, by the program that all batches of the kind share."""
    lengths = lengths + [(0, 0)] * (kind.rows - len(lengths))
    batch = make_batch(
        rng, lengths, kind.shape, layer=1, short_len=kind.short_len, tokens=kind.tokens, window=kind.window,
        longest=kind.longest,
    )  # fmt: skip
    q, k, v, pages = (np.asarray(jnp.asarray(x, kind.dtype), np.float64) for x in batch[:4])
    pages = write(pages, 1, k, v, batch.rows)
    sinks = None if kind.sinks is None else np.asarray(kind.sinks)
    options = {"scale": kind.shape.dim**-0.5, "window": kind.window, "soft_cap": kind.soft_cap, "sinks": sinks}
    want = attend(q, pages, 1, batch.rows, **options)
    arrays = [jnp.asarray(x, kind.dtype) for x in (*batch[:3], in_layout(HEADS, batch.kv_pages, kind.shape.dim))]
    with tpu_interpreter() if kind.backend == "mosaic_tpu" else nullcontext():
        out, after = program_of(kind)(*arrays, batch.rows, batch.short_rows)
        out = np.asarray(out, np.float32)
    assert np.abs(out - want).max() <= TOLERANCE[kind.dtype] * max(1.0, np.abs(want).max())
    kept = from_layout(HEADS, np.asarray(after, np.float32), kind.shape.dim, kind.shape.dim)
    for got, side in zip(kept, (pages[:, 0], pages[:, 1]), strict=True):
        np.testing.assert_array_equal(got[:, 1:], side[:, 1:].astype(np.float32))


@pytest.mark.few(3)
@pytest.mark.parametrize("backend", SIZES)
@pytest.mark.parametrize("mix", MIXES)
def test_equals_oracle(mix: str, backend: str):
    short_len = 3 if mix == "short_of_three" else 1
    shape, sizes = Shape(4, 2, 64, page=16), SIZES[backend]
    kind = Kind(shape, jnp.float32, short_len, None, None, None, sizes, backend, rows=7, tokens=112, longest=200)
    check_kind(kind, MIXES[mix], np.random.default_rng(0))


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", SIZES)
@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.int8])
def test_quantised_pages(dtype, backend: str):
    batch = make_batch(np.random.default_rng(4), [(0, 1), (0, 35), (0, 13)], Shape(4, 2, 64, 32), layer=0, short_len=1)
    scales = (0.03, 0.04) if dtype == jnp.int8 else (0.01, 0.02)

    def rounded(x, scale):
        scaled = jnp.asarray(x) / scale
        return np.asarray((jnp.round(scaled) if dtype == jnp.int8 else scaled).astype(dtype), np.float64) * scale

    k, v = (rounded(x, scale) for x, scale in zip((batch.k, batch.v), scales, strict=True))
    want = attend(batch.q, write(np.zeros(batch.kv_pages.shape), 0, k, v, batch.rows), 0, batch.rows, scale=0.2)
    batch = batch._replace(kv_pages=np.zeros_like(batch.kv_pages))
    out, _ = run(batch, backend, layer=0, short_len=1, scale=0.2, kv_scale=scales, kv_dtype=dtype)
    np.testing.assert_allclose(out, want, atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", SIZES)
@pytest.mark.parametrize(("mix", "heads"), one_of(3, [("mixed", 6), ("decode", 6), ("mixed", 16), ("prefill", 8)]))
def test_latent_attention_equals_oracle(mix: str, heads: int, backend: str, monkeypatch: pytest.MonkeyPatch):
    """One key for all heads, whose beginning is the value: attention with one KV head over [latent, rotated]."""
    monkeypatch.setattr("jaxinfer_kernels.tpu.attention.PIECE_ROWS", 64)
    key_dim, value_dim = 144, 128
    shape = Shape(heads, 1, key_dim, 16, 2)
    batch = make_batch(np.random.default_rng(9), MIXES[mix], shape, layer=1, short_len=1)
    latent = batch.k
    tokens = np.asarray(write(batch.kv_pages, 1, latent, latent, batch.rows))
    tokens[:, 1] = tokens[:, 0]
    want = attend(batch.q, tokens, 1, batch.rows, scale=0.1, value_dim=value_dim)
    pages = np.pad(batch.kv_pages[:, 0, :, :, 0], [(0, 0)] * 3 + [(0, 256 - key_dim)])

    def call(q, latent, pages, rows, short_rows):
        return ragged_latent_attention(
            q, latent, pages, 1, rows, value_dim=value_dim, short_rows=short_rows, short_len=1, scale=0.1,
            backend=backend, block_sizes=SIZES[backend],
        )  # fmt: skip

    with tpu_interpreter() if backend == "mosaic_tpu" else nullcontext():
        out, after = jax.jit(call)(batch.q, latent[:, 0], pages, batch.rows, batch.short_rows)
        out = np.asarray(out)
    np.testing.assert_allclose(out, want, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(after)[:, 1:, :, :key_dim], tokens[:, 0, 1:, :, 0].astype(np.float32))


@pytest.mark.long
def test_static_short_rows_equal_traced():
    batch = make_batch(np.random.default_rng(6), MIXES["decode"], Shape(4, 2, 64, 16), layer=0, short_len=1, tokens=6)
    traced, _ = run(batch, "mosaic_tpu", layer=0, short_len=1, scale=0.3)
    static, _ = run(batch, "mosaic_tpu", layer=0, short_len=1, scale=0.3, traced=False)
    np.testing.assert_array_equal(static, traced)


@pytest.mark.long
def test_two_cores_share_the_blocks():
    batch = make_batch(np.random.default_rng(7), MIXES["mixed"], Shape(4, 2, 64, 16), layer=0, short_len=1)
    check(batch, "mosaic_tpu", layer=0, short_len=1, sizes=TpuBlocks(32, 16, cores=2), scale=0.2)


@pytest.mark.few(1)
@pytest.mark.parametrize("removed", ["wait_pages", "wait_groups", "wait_results", "wait_queries", None])
def test_a_removed_wait_is_found(removed: str | None, monkeypatch: pytest.MonkeyPatch):
    """Without its waits for pages, for what it sends to the pages, or for results, the kernel is told to race, or
    gives other numbers."""
    batch = make_batch(np.random.default_rng(8), MIXES["mixed"], Shape(4, 2, 64, 16), layer=0, short_len=1)
    if removed is None:
        check(batch, "mosaic_tpu", layer=0, short_len=1, sizes=TpuBlocks(16, 16), scale=0.2)
        return
    skip_on_tpu()
    monkeypatch.setattr(attention_copies, removed, lambda *_: None)
    with pytest.raises(AssertionError):
        check(batch, "mosaic_tpu", layer=0, short_len=1, sizes=TpuBlocks(16, 16), scale=0.2)


def run_eagerly(lengths: list[tuple[int, int]], cores: int) -> None:
    """One call in which every copy that is started is done, so that its semaphore tells whether somebody waited."""
    batch = make_batch(np.random.default_rng(8), lengths, Shape(4, 2, 64, 16), layer=0, short_len=1)
    q, k, v = map(jnp.asarray, batch[:3])
    pages = jnp.asarray(in_layout(HEADS, batch.kv_pages, 64))
    with tpu_interpreter("eager"):
        out, _ = ragged_paged_attention(
            q, k, v, pages, 0, batch.rows, short_rows=jnp.int32(batch.short_rows), short_len=1, scale=0.2,
            backend="mosaic_tpu", layout=HEADS, block_sizes=TpuBlocks(16, 16, cores),
        )  # fmt: skip
        out.block_until_ready()


@pytest.mark.long
@pytest.mark.parametrize(("mix", "cores"), one_of(2, [("empty_rows", 1), ("mixed", 2)]))
def test_every_copy_is_waited_for(mix: str, cores: int):
    run_eagerly(MIXES[mix], cores)


@pytest.mark.long
def test_a_copy_that_nobody_waits_for_is_found(monkeypatch: pytest.MonkeyPatch):
    """One that races with nothing still leaves a semaphore above 0."""
    skip_on_tpu()
    does = attention_softmax.finish_block

    def finish(r: Any, form: Any, side: Any) -> None:
        attention_copies.ids_copy(r, jnp.int32(0), 1).start()
        does(r, form, side)

    monkeypatch.setattr(attention_softmax, "finish_block", finish)
    with pytest.raises(AssertionError, match="non-zero count"):
        run_eagerly([(5, 1)], cores=1)


@pytest.mark.long
def test_small_pages_equal_oracle():
    batch = make_batch(np.random.default_rng(8), [(5, 1), (3, 9)], Shape(4, 2, 64, 2), layer=0, short_len=1)
    check(batch, "mosaic_tpu", layer=0, short_len=1, sizes=TpuBlocks(16, 16), scale=0.2)


@pytest.mark.long
def test_tiles_of_several_pieces(monkeypatch: pytest.MonkeyPatch):
    """Rows that see all of a piece, its beginning only, or nothing of it; and a window that leaves out the first."""
    monkeypatch.setattr("jaxinfer_kernels.tpu.attention.PIECE_ROWS", 32)
    shape = Shape(2, 1, 64, page=128, layers=1)
    sizes = TpuBlocks(1024, 32, long_keys=1024)
    for window in (None, 300):
        batch = make_batch(
            np.random.default_rng(3), [(900, 1), (1100, 1), (130, 1), (900, 40), (5, 3)], shape,
            layer=0, short_len=1, window=window,
        )  # fmt: skip
        check(batch, "mosaic_tpu", layer=0, short_len=1, sizes=sizes, scale=0.2, window=window)


@pytest.mark.long
@pytest.mark.parametrize("short_rows", [0, 2])
def test_rows_of_one_token_among_long_ones(short_rows: int):
    """Nothing forbids them: there is room for as many long rows as there can be."""
    batch = make_batch(
        np.random.default_rng(3), [(3, 1)] * 7 + [(20, 1), (0, 2)], Shape(4, 2, 64, 16), layer=0, short_len=1, tokens=10
    )
    batch = batch._replace(short_rows=short_rows)
    for traced in (True, False):
        want = attend(batch.q, write(batch.kv_pages, 0, batch.k, batch.v, batch.rows), 0, batch.rows, scale=0.2)
        out, _ = run(batch, "mosaic_tpu", layer=0, short_len=1, scale=0.2, block_sizes=TpuBlocks(32, 16), traced=traced)
        np.testing.assert_allclose(out, want, atol=1e-5)
