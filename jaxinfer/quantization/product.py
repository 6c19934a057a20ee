"""Products with quantised weights."""

import jax
import jax.numpy as jnp
from jaxinfer_kernels.grouped_matmul import grouped_matmul
from jaxinfer_kernels.quantized_matmul import quantized_matmul

from jaxinfer.quantization.array import QuantizedArray, quantise_rows


def quantized_product(x: jax.Array, weight: QuantizedArray) -> jax.Array:
    """x [T, K] times the transpose of weight [N, K]: [T, N] float32."""
    scheme = weight.scheme
    if scheme.activations == "none":
        codes, scales, zeros = weight.codes, weight.scales, weight.zeros
        return quantized_matmul(x, codes, scales, zeros=zeros, out_dtype=jnp.float32, backend=weight.backend)
    rows, of_rows = quantise_rows(x, scheme.activations)
    summed = jnp.int32 if scheme.activations == "int8" else jnp.float32
    sums = jax.lax.dot_general(rows, weight.codes, (((1,), (1,)), ((), ())), preferred_element_type=summed)
    return sums.astype(jnp.float32) * of_rows * weight.scales[:, 0]


def quantized_grouped_product(x: jax.Array, weights: QuantizedArray, sizes: jax.Array, backend: str) -> jax.Array:
    """x [T, K], rows sorted by group, times weights [E, N, K] of each row's group: [T, N] in x's type. sizes: [E]
    int32, rows of each group."""
    if weights.scheme.activations != "none":
        rows, of_rows = quantise_rows(x, weights.scheme.activations)
        x = (rows.astype(jnp.float32) * of_rows).astype(x.dtype)
    return grouped_matmul(x, weights.codes, sizes, scales=weights.scales, backend=backend)
