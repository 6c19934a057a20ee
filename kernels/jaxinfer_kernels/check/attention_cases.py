"""Cases of attention over KV pages, and of copying pages."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxinfer_kernels import (
    KVLayout,
    RaggedRows,
    copy_pages,
    default_block_sizes,
    ragged_latent_attention,
    ragged_paged_attention,
)
from jaxinfer_kernels.available import unavailable
from jaxinfer_kernels.check.cases import Argument, Case, Lowering, array_bytes, kept_pages, lower_function, short_name
from jaxinfer_kernels.check.targets import FOLDER, read_target
from jaxinfer_kernels.layouts import platform_layout

_LAYERS = 4
_WGMMA = "ragged_paged_attention"
"""Text in the name of every GPU kernel that must use wgmma."""


class Heads(NamedTuple):
    """Attention of one model on one device. value_dim: None where it is that of keys."""

    model: str
    queries: int
    keys: int
    dim: int
    window: int | None = None
    value_dim: int | None = None

    @property
    def values(self) -> int:
        return self.value_dim or self.dim


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
GPU_HEADS = (
    Heads("Phi-3-mini", 32, 32, 96),
    Heads("Phi-2", 32, 32, 80),
    Heads("DeepSeek-V2-Lite", 16, 16, 192, value_dim=128),
    Heads("MiMo-V2-Flash", 64, 4, 192, value_dim=128),
)
"""Head dims whose rows take another swizzle of shared memory, and values that are narrower than keys (DeepSeek's as
its prompts have them, each head with keys and values of its own)."""
LATENT = Heads("DeepSeek-V3", 128, 1, 576)
"""Multi-head latent attention: pages keep 512 latent values a token, which are the value, and 64 rotated ones."""
SHARDED = Heads("Llama-3.1-70B", 64, 8, 128)
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


def attention_cases(platform: str, everything: bool) -> list[Case]:
    """Attention and page copies, of each kind the first shape or all."""
    attention = [
        _attention(platform, backend, heads, load)
        for backend in _BACKENDS[platform]
        for loads in (DECODE, MIXED)
        for heads, load in _pairs(loads, everything)
    ]
    if platform == "tpu":
        attention += [_latent(load) for load in (DECODE[0], MIXED[0])]
        attention += [_sharded(platform, "mosaic_tpu", 2, DECODE[0])]
    if platform == "cuda" and everything:
        loads = (DECODE[0], MIXED[0])
        attention += [_attention(platform, "mosaic_gpu", heads, load) for heads in GPU_HEADS for load in loads]
    if platform == "cuda":
        loads = (DECODE[0], MIXED[0])[: 1 + everything]
        attention += [_sharded(platform, "mosaic_gpu", count, load) for count in (2, 8) for load in loads]
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
    return platform_layout(platform).shape(
        layers=_LAYERS,
        pages=count,
        page_size=load.page,
        kv_heads=heads.keys,
        key_dim=heads.dim,
        value_dim=heads.values,
    )


def _attention(platform: str, backend: str, heads: Heads, load: Load) -> Case:
    shape, layout = _pages(platform, heads, load), platform_layout(platform)
    sizes = default_block_sizes("gpu" if platform == "cuda" else platform) if backend == "xla" else None
    call = partial(_call, heads, load, backend=backend, layout=layout, block_sizes=sizes)
    return Case(
        f"ragged_paged_attention {backend}, {_kind(load)}",
        f"{heads.model}, {load}",
        partial(lower_function, call, _arguments(heads, load, shape), (0,)),
        kept_pages(shape, load.kind, layout),
        array_bytes(shape, load.kind),
        unavailable(backend) or "",
        _WGMMA if backend == "mosaic_gpu" else "",
    )


def _latent(load: Load) -> Case:
    """Latent attention on a TPU."""
    width = 640
    shape = KVLayout.LATENT.shape(
        layers=_LAYERS,
        pages=_pages("tpu", LATENT, load)[1],
        page_size=load.page,
        kv_heads=1,
        key_dim=width,
        value_dim=512,
    )

    def call(
        pages: jax.Array, q: jax.Array, latent: jax.Array, _: jax.Array, short: jax.Array, *rows: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return ragged_latent_attention(
            q,
            latent[:, 0],
            pages,
            jnp.int32(1),
            RaggedRows(*rows),
            value_dim=512,
            short_rows=load.rows if load.tokens is None else short,
            short_len=1,
            scale=192**-0.5,
            backend="mosaic_tpu",
        )

    return Case(
        f"ragged_latent_attention mosaic_tpu, {_kind(load)}",
        f"{LATENT.model}, {load}",
        partial(lower_function, call, _arguments(LATENT, load, shape), (0,)),
        kept_pages(shape, load.kind, KVLayout.LATENT),
        array_bytes(shape, load.kind),
    )


def _sharded(platform: str, backend: str, count: int, load: Load) -> Case:
    """Each of `count` devices has its share of the KV heads, of their queries and of the pages, inside shard_map."""
    shape, layout = _pages(platform, SHARDED, load), platform_layout(platform)
    axis = layout.axes.index("kv_heads")
    part = (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])
    call = partial(_call, SHARDED, load, backend=backend, layout=layout)
    return Case(
        f"ragged_paged_attention {backend} on {count} devices, {_kind(load)}",
        f"{SHARDED.model}, {load}",
        partial(_lower_sharded, call, _arguments(SHARDED, load, shape), count, axis),
        kept_pages(part, load.kind, layout),
        array_bytes(part, load.kind),
        unavailable(backend) or "",
        _WGMMA if backend == "mosaic_gpu" else "",
    )


def _lower_sharded(call: Any, arguments: Sequence[Argument], count: int, axis: int, devices: Sequence[Any]) -> Lowering:
    """axis: of the pages, over KV heads. A target of one GPU has too few devices: a host with `count` is made up."""
    if len(devices) < count:
        devices = dataclasses.replace(read_target(FOLDER, "h200"), topology=f"1x1x{count}").devices()
    mesh = Mesh(np.array(devices[:count]), ("tensor",))
    pages, heads = PartitionSpec(*[None] * axis, "tensor"), PartitionSpec(None, "tensor")
    specs = (pages, heads, heads, heads, *[PartitionSpec()] * (len(arguments) - 4))
    shapes = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
        for (shape, dtype), spec in zip(arguments, specs, strict=True)
    ]
    sharded = jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=(heads, pages), check_vma=False)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        return Lowering(jax.jit(sharded, donate_argnums=0).lower(*shapes))


def _kind(load: Load) -> str:
    return "decode" if load.tokens is None else "mixed"


def _call(
    heads: Heads,
    load: Load,
    pages: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    short: jax.Array,
    *rows: jax.Array,
    **options: Any,
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
        **options,
    )


def _arguments(heads: Heads, load: Load, pages: tuple[int, ...]) -> tuple[Argument, ...]:
    tokens, width = load.tokens or load.rows, load.context // load.page
    q = Argument((tokens, heads.queries, heads.dim), jnp.bfloat16)
    k, v = (Argument((tokens, heads.keys, dim), jnp.bfloat16) for dim in (heads.dim, heads.values))
    integers = [Argument(dims, jnp.int32) for dims in ((), (load.rows, width), *[(load.rows,)] * 3)]
    return (Argument(pages, load.kind), q, k, v, *integers)


def _copy_pages(platform: str, heads: Heads) -> Case:
    load, layout = DECODE[0], platform_layout(platform)
    shape, ids = _pages(platform, heads, load), Argument((8,), jnp.int32)
    return Case(
        "copy_pages",
        f"{heads.model}, page {load.page}, {short_name(load.kind)}",
        partial(lower_function, partial(copy_pages, layout=layout), (Argument(shape, load.kind), ids, ids), (0,)),
        kept_pages(shape, load.kind, layout),
        array_bytes(shape, load.kind),
    )
