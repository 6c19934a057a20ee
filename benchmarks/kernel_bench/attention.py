"""Chains of attention calls: a loop over layers of one page array, each call on the output of the last."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxinfer_kernels import KVLayout, RaggedRows, ragged_latent_attention, ragged_paged_attention
from jaxinfer_kernels.layouts import LANES, platform_layout

from benchmarks.kernel_bench.cases import AttentionCase, ModelShape, Row, WriteCase
from benchmarks.kernel_bench.checks import check_close, poison
from benchmarks.kernel_bench.counts import cached_keys
from benchmarks.kernel_bench.forms import BenchForm
from benchmarks.kernel_bench.timing import Chain

_MOST_LAYERS = 64
_DRAWN_PAGES = 64
_CHECKED = 1000
"""A seed that no chain has."""

State = tuple[jax.Array, jax.Array]
"""Pages and q."""


def attention_chain(
    case: AttentionCase, backend: str, layout: KVLayout, page_size: int, layers: int, calls: int, dtype: str
) -> Chain:
    """Calls over `layers` layers in turn, so that a call finds none of its pages in a cache.

    Page ids are shuffled. The loop's number of steps is fixed: a GPU need not ask the host before each.
    Raises ValueError where the backend's results are wrong.
    """
    if backend != "xla":
        check_attention(case, backend, layout, page_size, dtype)
    table, arrays = rows_of(case, page_size)
    q, k, v = _drawn(case, dtype, seed=0)
    pages = make_pages(case.model, layout, layers, 1 + table.size, page_size, dtype)
    static = case.short_rows if case.kind in ("decode", "verify") else None

    @partial(jax.jit, donate_argnums=0)
    def chain(state: State, k: jax.Array, v: jax.Array, rows: RaggedRows, short: jax.Array) -> State:
        def step(index: jax.Array, state: State) -> State:
            split = short if static is None else static
            return attend_once(case, backend, layout, state, k, v, index % layers, rows, split)

        return jax.lax.fori_loop(0, calls, step, state)

    short = jnp.int32(case.short_rows)
    return Chain(lambda state: jax.block_until_ready(chain(state, k, v, arrays, short)), (pages, q), calls)


def check_attention(case: AttentionCase, backend: str, layout: KVLayout, page_size: int, dtype: str) -> None:
    """Raises ValueError where a call of the backend is not that of `xla`, on inputs drawn anew.

    Pages hold NaN wherever nothing was written, and so does what the result is put into. Pages must be equal bit by
    bit, but for the scratch page.
    """
    table, rows = rows_of(case, page_size)
    q, k, v = _drawn(case, dtype, seed=_CHECKED)
    held = held_slots(case.lengths, table, page_size)

    def attend(name: str) -> State:
        pages = make_pages(case.model, layout, 1, 1 + table.size, page_size, dtype, held)
        call = jax.jit(
            lambda state, k, v, rows: attend_once(case, name, layout, state, k, v, 0, rows, case.short_rows),
            donate_argnums=0,
        )
        query = jnp.array(q)
        poison((*q.shape[:2], case.model.value_dim), dtype)
        return jax.block_until_ready(call((pages, query), k, v, rows))

    (expected_pages, expected), (kept, out) = attend("xla"), attend(backend)
    check_close("attention", backend, out, expected)
    check_pages(backend, kept, expected_pages, layout)


def check_pages(backend: str, kept: jax.Array, expected: jax.Array, layout: KVLayout) -> None:
    """Raises ValueError where pages other than the scratch page differ in a bit."""

    @jax.jit
    def same(kept: jax.Array, expected: jax.Array) -> jax.Array:
        pages = (slice(None),) * layout.page_axis + (slice(1, None),)
        bits = jnp.dtype(f"uint{8 * kept.dtype.itemsize}")
        left, right = (jax.lax.bitcast_convert_type(each[pages], bits) for each in (kept, expected))
        return (left == right).all()

    if not same(kept, expected):
        raise ValueError(f"the pages of {backend} are wrong: they are not those of xla")


def held_slots(lengths: list[Row], table: np.ndarray, page_size: int) -> np.ndarray:
    """[pages, page_size], True where a row's keys of earlier steps lie."""
    held = np.zeros((1 + table.size, page_size), bool)
    for row, pages in zip(lengths, table, strict=True):
        position = np.arange(row.start)
        held[pages[position // page_size], position % page_size] = True
    return held


def rows_of(case: AttentionCase | WriteCase, page_size: int) -> tuple[np.ndarray, RaggedRows]:
    """Page ids from 1, shuffled, [R, P], and the rows with them."""
    rows, width = case.lengths, max(-(-(row.start + row.count) // page_size) for row in case.lengths)
    table = 1 + np.random.default_rng(0).permutation(len(rows) * width).reshape(len(rows), width)
    starts, counts = (np.array([row[side] for row in rows]) for side in (0, 1))
    return table, ragged_rows(table, starts, counts)


def _drawn(case: AttentionCase, dtype: str, seed: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q, k and v of all tokens."""
    tokens, model = sum(row.count for row in case.lengths), case.model
    sizes = ((model.q_heads, model.key_dim), (model.kv_heads, model.key_dim), (model.kv_heads, model.value_dim))
    keys = jax.random.split(jax.random.key(seed), 3)
    q, k, v = (jax.random.normal(key, (tokens, *size), jnp.dtype(dtype)) for key, size in zip(keys, sizes, strict=True))
    return q, k, v


def attend_once(
    case: AttentionCase,
    backend: str,
    layout: KVLayout,
    state: State,
    k: jax.Array,
    v: jax.Array,
    layer: jax.Array | int,
    rows: RaggedRows,
    short_rows: jax.Array | int,
) -> State:
    """One call; its output is the next one's q, or the beginning of it where values are smaller than keys."""
    pages, q = state
    model = case.model
    named: Any = {"short_rows": short_rows, "short_len": case.short_len, "scale": model.key_dim**-0.5}
    named["backend"] = backend
    if model.latent:
        out, pages = ragged_latent_attention(q, k[:, 0], pages, layer, rows, value_dim=model.value_dim, **named)
    else:
        named |= {"window": model.window, "layout": layout}
        out, pages = ragged_paged_attention(q, k, v, pages, layer, rows, **named)
    return pages, out if out.shape == q.shape else q.at[..., : out.shape[-1]].set(out)


def ragged_rows(table: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> RaggedRows:
    """Rows one behind the other. table: [R, P]. starts, counts: [R]."""
    offsets = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return RaggedRows(*(jnp.asarray(each, jnp.int32) for each in (table, starts, offsets, counts)))


def make_pages(
    model: ModelShape,
    layout: KVLayout,
    layers: int,
    pages: int,
    page_size: int,
    dtype: str,
    held: np.ndarray | None = None,
) -> jax.Array:
    """Pages of random values; every 64th is the same, which no device makes use of.

    held: [pages, page_size]; NaN lies where it is False.
    """
    shape = layout.shape(
        layers=layers,
        pages=pages,
        page_size=page_size,
        kv_heads=model.kv_heads,
        key_dim=latent_width(model) if model.latent else model.key_dim,
        value_dim=model.value_dim,
    )
    axis = layout.page_axis
    drawn = jax.random.normal(jax.random.key(1), (*shape[:axis], _DRAWN_PAGES, *shape[axis + 1 :])).astype(dtype)

    @jax.jit
    def repeated(drawn: jax.Array, held: jax.Array | None) -> jax.Array:
        values = jnp.take(drawn, jnp.arange(pages) % _DRAWN_PAGES, axis=axis)
        if held is None:
            return values
        sizes = [1] * values.ndim
        sizes[axis], sizes[_slot_axis(layout)] = held.shape
        return jnp.where(held.reshape(sizes), values, jnp.asarray(jnp.nan, dtype))

    return repeated(drawn, None if held is None else jnp.asarray(held))


def _slot_axis(layout: KVLayout) -> int:
    """The axis of a page's tokens."""
    named = dict.fromkeys(("layers", "pages", "kv_heads", "key_dim", "value_dim"), 1)
    return layout.shape(**named, page_size=1 << 20).index(1 << 20)


def page_bytes(case: AttentionCase | WriteCase, page_size: int, itemsize: int) -> int:
    """Bytes of one layer's pages."""
    width = max(-(-(row.start + row.count) // page_size) for row in case.lengths)
    model = case.model
    held = latent_width(model) if model.latent else model.kv_heads * 2 * max(model.key_dim, model.value_dim)
    return (1 + len(case.lengths) * width) * page_size * held * itemsize


def layers_for(case: AttentionCase | WriteCase, form: BenchForm, page_size: int, itemsize: int) -> int:
    """Layers of which one round reads more than a cache holds, as far as memory allows; 0 where one does not fit."""
    read = 0 if isinstance(case, WriteCase) else sum(cached_keys(row, case.model.window) for row in case.lengths)
    seen = read + sum(row.count for row in case.lengths)
    wanted = min(-(-form.cold_bytes // (seen * case.model.kept * itemsize)), _MOST_LAYERS)
    return min(wanted, form.most_bytes // page_bytes(case, page_size, itemsize))


def latent_width(model: ModelShape) -> int:
    """Values that the pages of latent attention have room for: a multiple of 128 on TPU."""
    return -(-model.key_dim // LANES) * LANES if jax.default_backend() == "tpu" else model.key_dim


def layout_of(platform: str, model: ModelShape) -> KVLayout:
    """The layout that the platform's backends share."""
    if model.latent:
        return KVLayout.LATENT
    return platform_layout(platform)


def runnable(backends: tuple[str, ...], platform: str) -> tuple[str, ...]:
    """Return the backends for `platform`: `mosaic_tpu` and `mosaic_gpu` name theirs."""
    made_for: dict[str, Any] = {"mosaic_tpu": "tpu", "mosaic_gpu": "gpu", "cudnn": "gpu", "native": "cpu"}
    return tuple(name for name in backends if made_for.get(name, platform) == platform)
