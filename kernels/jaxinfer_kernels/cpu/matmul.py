"""Products of the native kernels, with matrices that may be a layer of a stack or sorted by group."""

import jax
import jax.numpy as jnp

from jaxinfer_kernels.cpu.loading import library
from jaxinfer_kernels.cpu.packed import BLOCK, PACKED, is_packed, unpacked, values_shape
from jaxinfer_kernels.stack import StackLayer, Weights, whole

LANES = 16
"""Sizes of groups must be multiples of it."""
_FLOATS = (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16))
_CODES = (jnp.dtype(jnp.int8), PACKED)


def native_product(
    x: jax.Array,
    weights: Weights,
    sizes: jax.Array | None = None,
    *,
    scales: Weights | None = None,
    zeros: Weights | None = None,
    out_dtype: jnp.dtype,
) -> jax.Array:
    """x [T, K] times the transpose of a matrix [N, K], or with `sizes` of [E, N, K], each row with that of its group.

    x: float32, bfloat16, or int8 for weights of int8. weights: float32, bfloat16, int8 or packed (`cpu.packed`), with
    scales and zeros as `quantized_matmul` and `grouped_matmul` have them, in float32. sizes: [E] int32, rows of each
    group. out_dtype: float32 or bfloat16. Returns [T, N]. A row's sums are the same whatever other rows there are, and
    however many threads. All may be layers of stacks, which are read where they lie; packed codes whose groups are no
    multiples of 32 become int8 before. Raises ValueError where there is no library, and for other types and sizes of
    groups.
    """
    if reason := library().reason:
        raise ValueError(reason)
    if is_packed(weights) and _group(weights, scales) % BLOCK:
        weights, scales, zeros = unpacked(weights, scales, zeros)
    _check(x, weights, scales, out_dtype)
    index = weights.index.astype(jnp.int32) if isinstance(weights, StackLayer) else jnp.int32(0)
    if sizes is None:
        sizes = jnp.full(1, x.shape[0], jnp.int32)
    sides = [jnp.zeros(0) if side is None else whole(side).astype(jnp.float32) for side in (scales, zeros)]
    call = jax.ffi.ffi_call("jaxinfer_product", jax.ShapeDtypeStruct((x.shape[0], weights.shape[-2]), out_dtype))
    # Of an array with an axis of one XLA may want another layout, and copy it: an array of one axis has one layout.
    return call(x, whole(weights).reshape(-1), index, sizes, *(side.reshape(-1) for side in sides))


def _check(x: jax.Array, weights: Weights, scales: Weights | None, out_dtype: jnp.dtype) -> None:
    codes = weights.dtype in _CODES
    if x.dtype not in (*_FLOATS, jnp.int8) or weights.dtype not in (*_FLOATS, *_CODES) or out_dtype not in _FLOATS:
        raise ValueError(
            "native takes x in float32, bfloat16 and int8, weights in those types or packed int4, and gives float32 "
            f"and bfloat16, not {x.dtype}, {weights.dtype} and {out_dtype}"
        )
    if codes != (scales is not None) or (x.dtype == jnp.int8 and weights.dtype != jnp.int8):
        raise ValueError(f"native takes scales with codes alone, and x of int8 with int8, not {weights.dtype}")
    depth, group = values_shape(weights)[-1], _group(weights, scales)
    if group != depth and group % LANES:
        raise ValueError(f"native takes groups that are multiples of {LANES}, not {group}")


def _group(weights: Weights, scales: Weights | None) -> int:
    """Return the number of values in a row that share a scale."""
    depth = values_shape(weights)[-1]
    return depth // scales.shape[-1] if scales is not None and scales.ndim == weights.ndim else depth
