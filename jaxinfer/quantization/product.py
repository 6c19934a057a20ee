"""Products with quantised weights."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxinfer_kernels.grouped_matmul import grouped_matmul
from jaxinfer_kernels.quantized_matmul import quantized_matmul
from jaxinfer_kernels.stack import sliced

from jaxinfer.parallel.rules import Split
from jaxinfer.quantization.array import QuantizedArray, quantise_rows


def quantized_product(x: jax.Array, weight: QuantizedArray, over: Split = ()) -> jax.Array:
    """x [T, K] times the transpose of weight [N, K]: [T, N] float32.

    over: mesh axes that K is split over, in a shard_map: x and weight are one device's parts, and so is the sum.
    """
    weight, scheme = _read(weight), weight.scheme
    if weight.order is not None:
        # Without the barrier XLA lays x out by columns, and a CPU's products of bfloat16 refuse that (jax 0.10.2).
        x = jax.lax.optimization_barrier(jnp.take(_whole(x, over), weight.order, axis=1, mode="clip"))
    if scheme.activations != "none":
        rows, of_rows = quantise_rows(x, scheme.activations, over)
        return _multiplied(rows, weight) * of_rows
    sums = _multiplied(x, weight)
    return sums if weight.factors is None else sums * weight.factors[:, 0]


def _read(weight: QuantizedArray) -> QuantizedArray:
    """The weight with arrays of its own, but for a backend that reads a layer where it lies in a stack."""
    return weight if weight.backend in ("mosaic_tpu", "native") else sliced(weight)


def _multiplied(x: jax.Array, weight: QuantizedArray) -> jax.Array:
    """x, values or codes of the weight's type, times the weight by its backend."""
    codes, scales, zeros = weight.codes, weight.scales, weight.zeros
    return quantized_matmul(x, codes, scales, zeros=zeros, out_dtype=jnp.float32, backend=weight.backend)


def quantized_grouped_product(
    x: jax.Array, weights: QuantizedArray, sizes: jax.Array, backend: str, over: Split = ()
) -> jax.Array:
    """x [T, K], rows sorted by group, times weights [E, N, K] of each row's group: [T, N] in x's type. sizes: [E]
    int32, rows of each group. over: of `quantized_product`."""
    if weights.order is not None:
        x = jnp.take_along_axis(_whole(x, over), weights.order[_groups(x, sizes)], axis=1, mode="clip")
    held = {"weights": weights.codes, "scales": weights.scales, "zeros": weights.zeros}
    product = partial(grouped_matmul, group_sizes=sizes, backend=backend, **held)
    if weights.scheme.activations != "none":
        rows, of_rows = quantise_rows(x, weights.scheme.activations, over)
        there = jnp.arange(len(x))[:, None] < jnp.sum(sizes)  # 0 times the scale of a row of none may be NaN
        return jnp.where(there, product(rows) * of_rows, 0).astype(x.dtype)
    if weights.factors is None:
        return product(x)
    sums = product(x, out_dtype=jnp.dtype(jnp.float32))
    return (sums * weights.factors[_groups(x, sizes), :, 0]).astype(x.dtype)


def _whole(x: jax.Array, over: Split) -> jax.Array:
    """All columns of x, of which each device has its part: sorted, any of them may be one device's."""
    return jax.lax.all_gather(x, over, axis=1, tiled=True) if over else x


def _groups(x: jax.Array, sizes: jax.Array) -> jax.Array:
    """The group of each row of x [T, K], [T] int32; of rows of none it is any."""
    return jnp.repeat(jnp.arange(len(sizes)), sizes, total_repeat_length=len(x))
