"""The `native` backend: attention over pages by the kernels for CPUs."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer_kernels.cpu.loading import library
from jaxinfer_kernels.rows import RaggedRows
from jaxinfer_kernels.scoring import Scoring

_HELD = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8")
"""Types of pages; their numbers are those of `Held` in src/kernels.h."""


def check_native_pages(dtype: jnp.dtype) -> None:
    """Raises ValueError for pages that the kernels do not read."""
    if jnp.dtype(dtype).name not in _HELD:
        raise ValueError(f"kv_pages of native must be {', '.join(_HELD)}, not {dtype}")


def attend_native(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array | None,
    kv_pages: jax.Array,
    layer: jax.Array | int,
    rows: RaggedRows,
    scoring: Scoring,
    value_dim: int,
    dtype: jnp.dtype,
) -> tuple[jax.Array, jax.Array]:
    """Writes k and v, in the pages' type, into pages of TOKENS or LATENT, and attends from q, [T, Hq, Dk].

    dtype: what the pages hold, of which they are, or the bits. All is computed in float32. Keys are taken in tiles that
    begin at multiples of 64, so a token's result is the same in whichever chunk of its row it comes, whatever other
    rows there are, and however many threads. K and V of padding are not written.

    Returns (out [T, Hq, Dv] in q's type, zero for tokens of no row; the pages).
    """
    assert not library().reason
    wide = q if q.dtype in (jnp.float32, jnp.bfloat16) else q.astype(jnp.float32)
    scales = [jnp.float32(1 if scale is None else scale).reshape(()) for scale in (scoring.k_scale, scoring.v_scale)]
    results = (
        jax.ShapeDtypeStruct((*q.shape[:2], value_dim), wide.dtype),
        jax.ShapeDtypeStruct(kv_pages.shape, kv_pages.dtype),
    )
    call = jax.ffi.ffi_call("jaxinfer_attention", results, input_output_aliases={3: 1})
    out, pages = call(
        wide,
        k,
        jnp.zeros(0, kv_pages.dtype) if v is None else v,
        kv_pages,
        jnp.int32(layer),
        *(x.astype(jnp.int32) for x in rows),
        jnp.zeros(0, jnp.float32) if scoring.sinks is None else jnp.asarray(scoring.sinks, jnp.float32),
        jnp.stack(scales),
        held=np.int32(_HELD.index(jnp.dtype(dtype).name)),
        scale=np.float32(scoring.scale),
        window=np.int64(scoring.window or 0),
        soft_cap=np.float32(scoring.soft_cap or 0),
    )
    return out.astype(q.dtype), pages
