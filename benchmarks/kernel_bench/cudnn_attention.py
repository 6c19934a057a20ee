"""Paged decode attention by cuDNN, through JAX: a yardstick for benchmarks, and no backend.

What it takes is narrower than what the engine has. K and V pages are arrays of their own, where the engine's lie in
one; there are as many pages as the table has entries, none to spare and no scratch page; bfloat16 or float16 alone, no
window, no cap, no sinks, no latent attention. It only reads: the new K and V must be in their pages already.
"""

from typing import Any

import jax
import jax.numpy as jnp

_OLDEST = 90500
"""cuDNN 9.5, the first with paged attention (release notes of cudnn-frontend 1.8)."""

_WIDEST = 256


def cudnn_unavailable() -> str | None:
    """Why cuDNN cannot attend here, whatever the shapes; None where it can."""
    try:
        from jax._src.cudnn.fused_attention_stablehlo import check_cudnn_version, paged_attention
    except ImportError as error:
        return f"this jax, {jax.__version__}, has no paged attention by cuDNN: {error}"
    del paged_attention
    try:
        version = check_cudnn_version()
    except Exception as error:  # whatever the library's loader raises
        return f"cuDNN is not installed: {error}"
    return None if version >= _OLDEST else f"cuDNN must be {_OLDEST} (9.5) or newer, not {version}"


def cudnn_decode(
    q: jax.Array, k_pages: jax.Array, v_pages: jax.Array, table: jax.Array, lengths: jax.Array, *, scale: float
) -> jax.Array:
    """Attends from one token a row over the first `lengths` keys of the row; [R, Hq, D] in q's type, in one launch.

    q: [R, Hq, D]. k_pages, v_pages: [R * P, page, Hkv, D], the K and V of one layer of KVLayout.TOKENS, apart; of q's
    type, bfloat16 or float16, D a multiple of 8 up to 256. table: [R, P] int32, page ids. lengths: [R] int32, at least
    1. Raises ValueError for shapes and types other than those, and RuntimeError where cuDNN cannot run, with the
    reason.
    """
    if reason := cudnn_unavailable():
        raise RuntimeError(reason)
    _check(q, k_pages, v_pages, table, lengths)
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, paged_attention

    entries = table[:, None, :, None]
    ones = jnp.ones_like(lengths)
    out: Any = paged_attention(
        *(q[:, None], k_pages, v_pages, ones, lengths, entries, entries), scale=scale, mask_type=MaskType.PADDING
    )
    return out[:, 0]


def _check(q: jax.Array, k_pages: jax.Array, v_pages: jax.Array, table: jax.Array, lengths: jax.Array) -> None:
    if q.ndim != 3 or q.dtype not in (jnp.bfloat16, jnp.float16) or q.shape[2] % 8 or q.shape[2] > _WIDEST:
        raise ValueError(
            f"q must be [R, Hq, D] of bfloat16 or float16, D a multiple of 8 up to {_WIDEST}, "
            f"not {q.shape} of {q.dtype}"
        )
    if k_pages.shape != v_pages.shape or k_pages.ndim != 4 or {k_pages.dtype, v_pages.dtype} != {q.dtype}:
        raise ValueError(
            f"k_pages and v_pages must be [R * P, page, Hkv, D] of {q.dtype}, not {k_pages.shape} of {k_pages.dtype} "
            f"and {v_pages.shape} of {v_pages.dtype}"
        )
    if q.shape[1] % k_pages.shape[2] or q.shape[2] != k_pages.shape[3]:
        raise ValueError(f"q must be [R, a multiple of {k_pages.shape[2]}, {k_pages.shape[3]}], not {q.shape}")
    if table.ndim != 2 or table.shape[0] != q.shape[0] or table.dtype != jnp.int32:
        raise ValueError(f"table must be [{q.shape[0]}, P] of int32, not {table.shape} of {table.dtype}")
    if lengths.shape != q.shape[:1] or lengths.dtype != jnp.int32:
        raise ValueError(f"lengths must be {q.shape[:1]} of int32, not {lengths.shape} of {lengths.dtype}")
    if table.size != k_pages.shape[0]:
        raise ValueError(f"k_pages must have as many pages as table has entries, {table.size}, not {k_pages.shape[0]}")
