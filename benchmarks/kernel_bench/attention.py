"""Chains of attention calls: a loop over layers of one page array, each call on the output of the last."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxinfer_kernels import KVLayout, RaggedRows, ragged_latent_attention, ragged_paged_attention
from jaxinfer_kernels.layouts import LANES, platform_layout

from benchmarks.kernel_bench.cases import AttentionCase, ModelShape
from benchmarks.kernel_bench.counts import cached_keys
from benchmarks.kernel_bench.forms import BenchForm
from benchmarks.kernel_bench.timing import Chain

_MOST_LAYERS = 64
_DRAWN_PAGES = 64

State = tuple[jax.Array, jax.Array]
"""Pages and q."""


def attention_chain(
    case: AttentionCase, backend: str, layout: KVLayout, page_size: int, layers: int, calls: int, dtype: str
) -> Chain:
    """Calls over `layers` layers in turn, so that a call finds none of its pages in a cache.

    Page ids are shuffled. The loop's number of steps is fixed: a GPU need not ask the host before each.
    """
    rows, width = case.lengths, max(-(-(row.start + row.count) // page_size) for row in case.lengths)
    tokens, model = sum(row.count for row in rows), case.model
    table = 1 + np.random.default_rng(0).permutation(len(rows) * width).reshape(len(rows), width)
    arrays = ragged_rows(table, np.array([row.start for row in rows]), np.array([row.count for row in rows]))
    draw = partial(jax.random.normal, dtype=jnp.dtype(dtype))
    keys = jax.random.split(jax.random.key(0), 3)
    q = draw(keys[0], (tokens, model.q_heads, model.key_dim))
    k = draw(keys[1], (tokens, model.kv_heads, model.key_dim))
    v = draw(keys[2], (tokens, model.kv_heads, model.value_dim))
    pages = make_pages(case, layout, layers, 1 + table.size, page_size, dtype)
    static = case.short_rows if case.kind in ("decode", "verify") else None

    @partial(jax.jit, donate_argnums=0)
    def chain(state: State, k: jax.Array, v: jax.Array, rows: RaggedRows, short: jax.Array) -> State:
        def step(index: jax.Array, state: State) -> State:
            split = short if static is None else static
            return attend_once(case, backend, layout, state, k, v, index % layers, rows, split)

        return jax.lax.fori_loop(0, calls, step, state)

    short = jnp.int32(case.short_rows)
    return Chain(lambda state: jax.block_until_ready(chain(state, k, v, arrays, short)), (pages, q), calls)


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


def make_pages(case: AttentionCase, layout: KVLayout, layers: int, pages: int, page_size: int, dtype: str) -> jax.Array:
    """Pages of random values; every 64th is the same, which no device makes use of."""
    model = case.model
    shape = layout.shape(
        layers=layers,
        pages=pages,
        page_size=page_size,
        kv_heads=model.kv_heads,
        key_dim=latent_width(model) if model.latent else model.key_dim,
        value_dim=model.value_dim,
    )
    axis = layout.page_axis
    drawn = jax.random.normal(jax.random.key(1), (*shape[:axis], _DRAWN_PAGES, *shape[axis + 1 :]), jnp.dtype(dtype))

    @jax.jit
    def repeated(drawn: jax.Array) -> jax.Array:
        return jnp.take(drawn, jnp.arange(pages) % _DRAWN_PAGES, axis=axis)

    return repeated(drawn)


def page_bytes(case: AttentionCase, page_size: int, itemsize: int) -> int:
    """Bytes of one layer's pages."""
    width = max(-(-(row.start + row.count) // page_size) for row in case.lengths)
    model = case.model
    held = latent_width(model) if model.latent else model.kv_heads * 2 * max(model.key_dim, model.value_dim)
    return (1 + len(case.lengths) * width) * page_size * held * itemsize


def layers_for(case: AttentionCase, form: BenchForm, page_size: int, itemsize: int) -> int:
    """Layers of which one round reads more than a cache holds, as far as memory allows; 0 where one does not fit."""
    seen = sum(cached_keys(row, case.model.window) + row.count for row in case.lengths)
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
    """Those that are made for `platform`: `mosaic_tpu` and `mosaic_gpu` say it in their names."""
    made_for: dict[str, Any] = {"mosaic_tpu": "tpu", "mosaic_gpu": "gpu", "cudnn": "gpu"}
    return tuple(name for name in backends if made_for.get(name, platform) == platform)
