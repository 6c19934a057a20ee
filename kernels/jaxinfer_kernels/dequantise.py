"""Weights held as int8, int4 or e4m3 with scales: [..., N, K], outputs before inputs."""

import jax
import jax.numpy as jnp

QUANTISED = (jnp.dtype(jnp.int8), jnp.dtype(jnp.int4), jnp.dtype(jnp.float8_e4m3fn))
"""Types of weights that are codes, each counted with its scale."""


def is_quantised(weight: jax.Array) -> bool:
    """Whether `weight` is of a type that needs scales."""
    return weight.dtype in QUANTISED


def with_groups(weight: jax.Array, scales: jax.Array, name: str) -> jax.Array:
    """Scales, or zeros, as [..., N, K // group], where one scale a channel is a group of all K.

    weight: [..., N, K]. scales: [..., N] or [..., N, K // group], float32 or bfloat16. Raises ValueError, which calls
    scales `name`, for other types and where the shapes do not fit each other.
    """
    if scales.dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"{name} must be float32 or bfloat16, not {scales.dtype}")
    grouped = scales[..., None] if scales.shape == weight.shape[:-1] else scales
    depth = weight.shape[-1]
    if grouped.shape[:-1] != weight.shape[:-1] or grouped.shape[-1] < 1 or depth % grouped.shape[-1]:
        channels = weight.shape[:-1]
        allowed = f"{channels} or {(*channels, f'a divisor of {depth}')}".replace("'", "")
        raise ValueError(f"{name} must be {allowed}, not {scales.shape}")
    return grouped


def sides_with_groups(
    weight: jax.Array, scales: jax.Array, zeros: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
    """Scales and zeros, each as `with_groups` gives them. Raises ValueError as it does, and for zeros of another shape
    than scales."""
    grouped = with_groups(weight, scales, "scales")
    if zeros is None:
        return grouped, None
    if zeros.shape != scales.shape:
        raise ValueError(f"zeros must be {scales.shape}, as scales, not {zeros.shape}")
    return grouped, with_groups(weight, zeros, "zeros")


def dequantise(weight: jax.Array, scales: jax.Array, zeros: jax.Array | None, dtype: jnp.dtype) -> jax.Array:
    """(weight - zeros) * scales, [..., N, K], in float32 and then rounded to `dtype`.

    weight: [..., N, K]. scales and zeros: [..., N, K // group].
    """
    cut = weight.reshape(*scales.shape, -1).astype(jnp.float32)
    if zeros is not None:
        cut = cut - zeros[..., None].astype(jnp.float32)
    return (cut * scales[..., None].astype(jnp.float32)).reshape(weight.shape).astype(dtype)


def multiply(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x [T, K] @ weight [N, K].T, [T, N] float32, in the wider type of the two; codes become x's type.

    TPUs by default round float32 to bfloat16, and GPUs to TF32: not here.
    """
    dtype = x.dtype if is_quantised(weight) else jnp.promote_types(x.dtype, weight.dtype)
    precision = jax.lax.Precision.HIGHEST if dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    contract = (((1,), (1,)), ((), ()))
    return jax.lax.dot_general(
        x.astype(dtype), weight.astype(dtype), contract, precision=precision, preferred_element_type=jnp.float32
    )
