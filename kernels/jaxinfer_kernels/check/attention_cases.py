"""Cases of attention over KV pages, and of copying pages."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer_kernels import KVLayout, RaggedRows, copy_pages, default_block_sizes, ragged_paged_attention
from jaxinfer_kernels.attention import BACKENDS
from jaxinfer_kernels.check.cases import Argument, Case, array_bytes, compile_function, kept_pages, short_name

_LAYERS = 4


class Heads(NamedTuple):
    """Attention of one model on one device."""

    model: str
    queries: int
    keys: int
    dim: int
    window: int | None = None


class Load(NamedTuple):
    """Sizes of a step. tokens: None for a decode step, which has one a row. context: tokens that a row may hold."""

    rows: int
    context: int
    page: int
    tokens: int | None
    kind: Any = jnp.bfloat16

    def __str__(self) -> str:
        some = f"{self.rows} rows" if self.tokens is None else f"{self.tokens} tokens"
        return f"{some}, {self.context >> 10}k, page {self.page}, {short_name(self.kind)}"


HEADS = (
    Heads("Llama-3.1-8B", 32, 8, 128),
    Heads("Qwen3-0.6B", 16, 8, 128),
    Heads("Llama-3.1-70B/8", 8, 1, 128),
    Heads("Qwen2.5-0.5B", 14, 2, 64),
    Heads("Gemma-3-4B", 8, 4, 256, 1024),
)
DECODE = (
    Load(256, 8192, 64, None),
    Load(16, 2048, 16, None),
    Load(256, 131072, 128, None),
    Load(256, 8192, 64, None, jnp.float8_e4m3fn),
    Load(256, 8192, 64, None, jnp.int8),
)
MIXED = (
    Load(256, 8192, 64, 2048),
    Load(16, 2048, 16, 128),
    Load(256, 8192, 64, 2048, jnp.float8_e4m3fn),
)
_BACKENDS = {"tpu": ("xla", "mosaic_tpu"), "cuda": ("xla", "mosaic_gpu")}
_LAYOUT = {"tpu": KVLayout.HEADS, "cuda": KVLayout.TOKENS}


def attention_cases(platform: str, everything: bool) -> list[Case]:
    """Attention and page copies, of each kind the first shape or all."""
    attention = [
        _attention(platform, backend, heads, load)
        for backend in _BACKENDS[platform]
        if backend in BACKENDS
        for loads in (DECODE, MIXED)
        for heads, load in _pairs(loads, everything)
    ]
    return attention + [_copy_pages(platform, heads) for heads in _models(everything)]


def _models(everything: bool) -> Sequence[Heads]:
    return HEADS if everything else HEADS[:1]


def _pairs(loads: Sequence[Load], everything: bool) -> list[tuple[Heads, Load]]:
    """Every model with the first load, and the first model with every other: a sum, not a product."""
    return [(heads, loads[0]) for heads in _models(everything)] + [
        (HEADS[0], load) for load in (loads[1:] if everything else ())
    ]


def _pages(platform: str, heads: Heads, load: Load) -> tuple[int, ...]:
    """Pages for a quarter of what the rows may hold, at least 1024; an odd count, so that nothing else is as large."""
    count = max(load.rows * load.context // load.page // 4, 1024) + 1
    return _LAYOUT[platform].shape(
        layers=_LAYERS,
        pages=count,
        page_size=load.page,
        kv_heads=heads.keys,
        key_dim=heads.dim,
        value_dim=heads.dim,
    )


def _attention(platform: str, backend: str, heads: Heads, load: Load) -> Case:
    shape, layout = _pages(platform, heads, load), _LAYOUT[platform]
    tokens, width = load.tokens or load.rows, load.context // load.page
    sizes = default_block_sizes("gpu" if platform == "cuda" else platform) if backend == "xla" else None

    def attend(
        pages: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, short: jax.Array, *rows: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return ragged_paged_attention(
            q,
            k,
            v,
            pages,
            jnp.int32(1),
            RaggedRows(*rows),
            short_rows=load.rows if load.tokens is None else short,
            short_len=1,
            scale=heads.dim**-0.5,
            window=heads.window,
            kv_scale=None if load.kind == jnp.bfloat16 else (0.5, 0.25),
            backend=backend,
            layout=layout,
            block_sizes=sizes,
        )

    q = Argument((tokens, heads.queries, heads.dim), jnp.bfloat16)
    k = Argument((tokens, heads.keys, heads.dim), jnp.bfloat16)
    integers = [Argument(dims, jnp.int32) for dims in ((), (load.rows, width), *[(load.rows,)] * 3)]
    arguments = (Argument(shape, load.kind), q, k, k, *integers)
    return Case(
        f"ragged_paged_attention {backend}, {'decode' if load.tokens is None else 'mixed'}",
        f"{heads.model}, {load}",
        partial(compile_function, attend, arguments, (0,)),
        kept_pages(shape, load.kind, layout),
        array_bytes(shape, load.kind),
    )


def _copy_pages(platform: str, heads: Heads) -> Case:
    load, layout = DECODE[0], _LAYOUT[platform]
    shape, ids = _pages(platform, heads, load), Argument((8,), jnp.int32)
    return Case(
        "copy_pages",
        f"{heads.model}, page {load.page}, {short_name(load.kind)}",
        partial(compile_function, partial(copy_pages, layout=layout), (Argument(shape, load.kind), ids, ids), (0,)),
        kept_pages(shape, load.kind, layout),
        array_bytes(shape, load.kind),
    )
