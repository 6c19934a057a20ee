"""Cases of writing to KV pages, by XLA's scatter and by the GPU kernel beside it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer_kernels.available import unavailable
from jaxinfer_kernels.check.cases import Argument, Case, array_bytes, kept_pages, lower_function, short_name
from jaxinfer_kernels.layouts import KVLayout
from jaxinfer_kernels.pages import write_kv
from jaxinfer_kernels.rows import TokenPlaces

_KINDS = ((256, jnp.bfloat16), (2048, jnp.bfloat16), (256, jnp.float8_e4m3fn), (256, jnp.int8))
_SHAPE = KVLayout.TOKENS.shape(layers=4, pages=8193, page_size=64, kv_heads=8, key_dim=128, value_dim=128)


def kv_write_cases(platform: str, everything: bool) -> list[Case]:
    """Return a case for each way to write on a GPU, for the first kind of pages or all; none elsewhere."""
    if platform != "cuda":
        return []
    wanted = _KINDS if everything else _KINDS[:1]
    return [_write(backend, tokens, kind) for backend in ("xla", "mosaic_gpu") for tokens, kind in wanted]


def _write(backend: str, tokens: int, kind: Any) -> Case:
    new, place = Argument((tokens, *_SHAPE[-2:]), kind), Argument((tokens,), jnp.int32)
    arguments = (Argument(_SHAPE, kind), Argument((), jnp.int32), new, new, place, place)
    return Case(
        f"write_kv {backend}",
        f"Llama-3.1-8B, {tokens} tokens, page 64, {short_name(kind)}",
        partial(lower_function, _WRITERS[backend], arguments, (0,)),
        kept_pages(_SHAPE, kind, KVLayout.TOKENS),
        array_bytes(_SHAPE, kind),
        unavailable(backend) or "",
    )


def _by_xla(pages: jax.Array, layer: jax.Array, k: jax.Array, v: jax.Array, *places: jax.Array) -> jax.Array:
    return write_kv(pages, layer, k, v, TokenPlaces(*places), KVLayout.TOKENS)


def _by_kernel(pages: jax.Array, layer: jax.Array, k: jax.Array, v: jax.Array, *places: jax.Array) -> jax.Array:
    from jaxinfer_kernels.gpu.kv_write import write_kv_gpu  # needs jax 0.11

    return write_kv_gpu(pages, layer, k, v, TokenPlaces(*places))


_WRITERS: dict[str, Callable[..., jax.Array]] = {"xla": _by_xla, "mosaic_gpu": _by_kernel}
