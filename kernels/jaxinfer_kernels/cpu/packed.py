"""Codes of int4, two in a byte: JAX's programs on a CPU refuse types of four bits, and keep each value in a byte."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer_kernels.stack import Weights, sliced

BLOCK = 32
"""Values of a row that 16 bytes hold. Byte i has the code of value i in its low four bits and the code of value i + 16
in its high four bits, both as two's complement."""
PACKED = jnp.dtype(jnp.uint8)
"""The type of packed codes, which no other weights have."""
Array = TypeVar("Array", np.ndarray, jax.Array)
Scales = TypeVar("Scales", bound=Weights | None)
Zeros = TypeVar("Zeros", bound=Weights | None)


def pack(codes: Array) -> Array:
    """Pack codes [..., K], int8 or int4 from -8 to 7, into uint8 [..., K // 2]. Traceable; an array of NumPy gives one.

    K is a multiple of BLOCK.
    """
    *lead, depth = codes.shape
    halves = codes.astype(np.int8).view(np.uint8).reshape(*lead, depth // BLOCK, 2, BLOCK // 2)
    return ((halves[..., 0, :] & 15) | (halves[..., 1, :] << 4)).reshape(*lead, depth // 2)


def unpack(packed: jax.Array) -> jax.Array:
    """Unpack uint8 [..., K // 2] into int8 codes [..., K]. Traceable."""
    *lead, size = packed.shape
    pairs = jax.lax.bitcast_convert_type(packed, jnp.int8).reshape(*lead, 2 * size // BLOCK, 1, BLOCK // 2)
    low_and_high = (pairs << jnp.array([[4], [0]], jnp.int8)) >> 4  # arithmetic: it repeats the sign
    return low_and_high.reshape(*lead, 2 * size)


def is_packed(weights: Weights) -> bool:
    """Return whether `weights` hold two codes in a byte."""
    return weights.dtype == PACKED


def values_shape(weights: Weights) -> tuple[int, ...]:
    """The shape of the values that `weights` hold, packed or not."""
    *lead, size = weights.shape
    return (*lead, 2 * size if is_packed(weights) else size)


def has_depth(weights: Weights, depth: int) -> bool:
    """Return whether a row of `weights` has `depth` values; in packed weights it must be a multiple of BLOCK, too."""
    return values_shape(weights)[-1] == depth and not (is_packed(weights) and depth % BLOCK)


def unpacked(weights: Weights, scales: Scales, zeros: Zeros) -> tuple[Weights, Scales, Zeros]:
    """Weights, scales and zeros for a kernel that does not read packed codes: those become int8, and each layer of a
    stack an array of its own. Others are returned as they are."""
    if not is_packed(weights):
        return weights, scales, zeros
    matrices, its_scales, its_zeros = sliced((weights, scales, zeros))
    return unpack(matrices), its_scales, its_zeros
