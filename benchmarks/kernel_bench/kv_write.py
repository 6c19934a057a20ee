"""Chains of writes to KV pages: XLA's scatter, and the kernels for GPU and TPU beside it."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxinfer_kernels import KVLayout
from jaxinfer_kernels.pages import write_kv
from jaxinfer_kernels.rows import RaggedRows, TokenPlaces, token_places
from jaxinfer_kernels.tpu.kv_write import write_rows

from benchmarks.kernel_bench.attention import check_pages, make_pages, rows_of
from benchmarks.kernel_bench.cases import WriteCase
from benchmarks.kernel_bench.checks import poison
from benchmarks.kernel_bench.timing import Chain

WRITERS = {"mosaic_gpu": "GPU", "mosaic_tpu": "TPU"}
"""Kernels that write pages by themselves, and what they need. On a TPU the engine writes long rows with it; of short
ones the attention kernel does."""

_CHECKED = 1000
"""A seed that no chain has."""


class Tokens(NamedTuple):
    """Places of new tokens, in the forms that writers take."""

    rows: RaggedRows
    places: TokenPlaces


Write = Callable[[jax.Array, jax.Array | int, jax.Array, jax.Array, Tokens], jax.Array]


def kv_write_chain(case: WriteCase, backend: str, layout: KVLayout, page_size: int, layers: int, calls: int) -> Chain:
    """Calls over `layers` layers in turn. Raises ValueError where what the backend leaves in the pages is wrong."""
    if backend != "xla":
        check_write(case, backend, layout, page_size)
    table, rows = rows_of(case, page_size)
    k, v = _drawn(case, seed=0)
    pages = make_pages(case.model, layout, layers, 1 + table.size, page_size, case.dtype)
    write, tokens = _writer(backend, layout), Tokens(rows, token_places(rows, case.tokens, page_size))

    @partial(jax.jit, donate_argnums=0)
    def chain(pages: jax.Array, k: jax.Array, v: jax.Array, tokens: Tokens) -> jax.Array:
        return jax.lax.fori_loop(0, calls, lambda index, pages: write(pages, index % layers, k, v, tokens), pages)

    return Chain(lambda pages: jax.block_until_ready(chain(pages, k, v, tokens)), pages, calls)


def check_write(case: WriteCase, backend: str, layout: KVLayout, page_size: int) -> None:
    """Raises ValueError where pages, full of NaN before, are not those of XLA's scatter, bit by bit."""
    table, rows = rows_of(case, page_size)
    k, v = _drawn(case, _CHECKED)
    tokens = Tokens(rows, token_places(rows, case.tokens, page_size))
    shape = make_pages(case.model, layout, 1, 1 + table.size, page_size, case.dtype).shape
    poison(shape, case.dtype)
    expected, kept = (
        jax.jit(_writer(name, layout), donate_argnums=0)(jnp.full(shape, jnp.nan, case.dtype), 0, k, v, tokens)
        for name in ("xla", backend)
    )
    check_pages(backend, kept, expected, layout)


def _drawn(case: WriteCase, seed: int) -> tuple[jax.Array, jax.Array]:
    model, keys = case.model, jax.random.split(jax.random.key(seed))
    k, v = (
        jax.random.normal(key, (case.tokens, model.kv_heads, size)).astype(case.dtype)
        for key, size in zip(keys, (model.key_dim, model.value_dim), strict=True)
    )
    return k, v


def _writer(backend: str, layout: KVLayout) -> Write:
    if backend == "xla":
        return lambda pages, layer, k, v, tokens: write_kv(pages, layer, k, v, tokens.places, layout)
    if backend == "mosaic_tpu":
        return lambda pages, layer, k, v, tokens: write_rows(pages, layer, k, v, tokens.rows)
    if backend != "mosaic_gpu":
        raise ValueError(f"backend {backend!r} writes no pages by itself; known are xla, {', '.join(WRITERS)}")
    from jaxinfer_kernels.gpu.kv_write import write_kv_gpu  # needs jax 0.11

    return lambda pages, layer, k, v, tokens: write_kv_gpu(pages, layer, k, v, tokens.places)
