"""Weights held as int8, int4, e4m3 or e2m1 with scales: [..., N, K], outputs before inputs; int4 may be packed."""

import jax
import jax.numpy as jnp

from jaxinfer_kernels.cpu.packed import PACKED, is_packed, unpack, values_shape
from jaxinfer_kernels.stack import StackLayer, Weights

E2M1 = jnp.dtype(jnp.float4_e2m1fn)
E8M0 = jnp.dtype(jnp.float8_e8m0fnu)
QUANTISED = (jnp.dtype(jnp.int8), jnp.dtype(jnp.int4), jnp.dtype(jnp.float8_e4m3fn), E2M1, PACKED)
"""Types of weights that are codes, each counted with its scale; of uint8 a byte has two of int4."""

ROUNDED = QUANTISED[0], QUANTISED[2]
"""Types of codes that activations may be rounded to, to be multiplied with weights of the same type as they are."""

_SCALES = (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float8_e4m3fn), E8M0)
_ZEROS = _SCALES[:2]

CODES_FROM_E2M1 = 2**14
"""Divisor in `e5m2_of_e2m1`: codes are its results times this."""


def is_quantised(weight: Weights) -> bool:
    """Return whether `weight` has a type that needs scales."""
    return weight.dtype in QUANTISED


def is_rounded(x: jax.Array) -> bool:
    """Return whether activations are codes, whose scales the caller applies to the result."""
    return x.dtype in ROUNDED


PLAIN = (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))
"""Types of values; float16 is for `xla` alone."""


def check_activations(
    x: jax.Array, weight: Weights, scales: Weights | None, zeros: Weights | None, backend: str
) -> None:
    """Raises ValueError for x of other shapes and types than [T, K] of float32, bfloat16, float16, int8 and e4m3; and
    for codes with weights of another type, with several scales for a row of weights, and with zeros; and for float16
    with another backend than `xla`."""
    if x.ndim != 2 or 0 in x.shape or x.dtype not in (*PLAIN, *ROUNDED):
        raise ValueError(f"x must be [T, K] of float32, bfloat16, float16, int8 or e4m3, not {x.shape} of {x.dtype}")
    if x.dtype == jnp.float16 and backend != "xla":
        raise ValueError(f"x in float16 is for xla alone, not for {backend}")
    if not is_rounded(x):
        return
    if weight.dtype != x.dtype:
        raise ValueError(f"weights must be {x.dtype}, as x is, not {weight.dtype}")
    if zeros is not None or scales is None or scales.shape != weight.shape[:-1] + (1,) * (scales.ndim == weight.ndim):
        raise ValueError(f"weights that x in {x.dtype} is multiplied with must have a scale a row and no zeros")


def e5m2_of_e2m1(codes: jax.Array) -> jax.Array:
    """The codes over 2**14, in e5m2, inside a kernel: sign, exponent and mantissa are moved to where e5m2 has them.

    Compilers widen e5m2 on every chip, in one instruction, and e2m1 on the newest only. Nothing is lost: 0.5, of
    exponent 0, becomes a subnormal value of e5m2 too.
    """
    bits = jax.lax.bitcast_convert_type(codes, jnp.int4).astype(jnp.int8)  # s s s s s e e m
    return jax.lax.bitcast_convert_type((bits << 1) & jnp.int8(-114), jnp.float8_e5m2)  # s 0 0 0 e e m 0


def widened_scales(scales: jax.Array) -> jax.Array:
    """Scales of any type to float32; e8m0 by its bits, since few compilers know the type: 2**-127 becomes 0."""
    if scales.dtype != E8M0:
        return scales.astype(jnp.float32)
    bits = jax.lax.bitcast_convert_type(scales, jnp.uint8).astype(jnp.int32)
    return jax.lax.bitcast_convert_type(bits << 23, jnp.float32)


def with_groups(weight: Weights, scales: Weights, name: str, types: tuple[jnp.dtype, ...] = _SCALES) -> Weights:
    """Scales, or zeros, as [..., N, K // group], where one scale a channel is a group of all K.

    weight: [..., N, K], or packed. scales: [..., N] or [..., N, K // group], of one of the types. Raises ValueError,
    which calls scales `name`, for other types and where the shapes do not fit each other.
    """
    if scales.dtype not in types:
        *names, last = (dtype.name for dtype in types)
        raise ValueError(f"{name} must be {', '.join(names)} or {last}, not {scales.dtype}")
    grouped = scales.reshape(*scales.shape, 1) if scales.shape == weight.shape[:-1] else scales
    depth = values_shape(weight)[-1]
    if grouped.shape[:-1] != weight.shape[:-1] or grouped.shape[-1] < 1 or depth % grouped.shape[-1]:
        channels = weight.shape[:-1]
        allowed = f"{channels} or {(*channels, f'a divisor of {depth}')}".replace("'", "")
        raise ValueError(f"{name} must be {allowed}, not {scales.shape}")
    return grouped


def sides_with_groups(weight: Weights, scales: Weights, zeros: Weights | None) -> tuple[Weights, Weights | None]:
    """Scales and zeros, each as `with_groups` gives them. Raises ValueError as it does, for zeros of another shape than
    scales, for zeros of e2m1, and where some are layers of stacks and others are not."""
    if len({isinstance(part, StackLayer) for part in (weight, scales, zeros) if part is not None}) > 1:
        raise ValueError("weights, scales and zeros must all be layers of stacks, or none of them")
    grouped = with_groups(weight, scales, "scales")
    if zeros is None:
        return grouped, None
    if weight.dtype == E2M1:
        raise ValueError("zeros do not go with e2m1, which has a sign")
    if zeros.shape != scales.shape:
        raise ValueError(f"zeros must be {scales.shape}, as scales, not {zeros.shape}")
    return grouped, with_groups(weight, zeros, "zeros", _ZEROS)


def dequantise(weight: jax.Array, scales: jax.Array, zeros: jax.Array | None, dtype: jnp.dtype) -> jax.Array:
    """(weight - zeros) * scales, [..., N, K], in float32 and then rounded to `dtype`.

    weight: [..., N, K]. scales and zeros: [..., N, K // group].
    """
    cut = weight.reshape(*scales.shape, -1).astype(jnp.float32)
    if zeros is not None:
        cut = cut - zeros[..., None].astype(jnp.float32)
    return (cut * widened_scales(scales)[..., None]).reshape(weight.shape).astype(dtype)


def multiply(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x [T, K] @ weight [N, K].T, [T, N] float32, in the wider type of the two; codes become x's type.

    Codes with codes are multiplied as they are. The sum of int8 is exact until it is rounded, for K up to 2**17.
    TPUs by default round float32 to bfloat16, and GPUs to TF32: not here.
    """
    dtype = x.dtype if is_quantised(weight) else jnp.promote_types(x.dtype, weight.dtype)
    precision = jax.lax.Precision.HIGHEST if dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    contract, summed = (((1,), (1,)), ((), ())), jnp.int32 if dtype == jnp.int8 else jnp.float32
    sums = jax.lax.dot_general(
        x.astype(dtype), weight.astype(dtype), contract, precision=precision, preferred_element_type=summed
    )
    return sums.astype(jnp.float32)


def multiply_scaled(x: jax.Array, weight: jax.Array, scales: jax.Array, zeros: jax.Array | None) -> jax.Array:
    """x [T, K] @ ((weight - zeros) * scales).T, [T, N] float32, in plain JAX; scales and zeros [N, K // group]. weight:
    [N, K], or packed."""
    if is_packed(weight):
        weight = unpack(weight)
    if is_rounded(x):
        return multiply(x, weight) * widened_scales(scales[:, 0])
    return multiply(x, dequantise(weight, scales, zeros, x.dtype))
