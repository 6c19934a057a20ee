"""Matrix products: all that a layer and a head multiply goes through `Linear` or `GroupedLinear`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxinfer_kernels.cpu.matmul import native_product
from jaxinfer_kernels.grouped_matmul import grouped_matmul
from jaxinfer_kernels.stack import StackLayer

from jaxinfer.layers.param import Matrix, QuantizedParam, held, precision
from jaxinfer.parallel.per_device import per_device
from jaxinfer.parallel.rules import Split
from jaxinfer.parallel.shards import Shards, spec
from jaxinfer.quantization.array import QuantizedArray
from jaxinfer.quantization.product import quantized_grouped_product, quantized_product

# NOTE: the product is always of two matrices. XLA on CPU writes out a transposed copy of a weight with more axes in
# every step (ten times slower, measured); flattening one's leading axes costs nothing, since they lie in order, and of
# merged axes only the first is ever sharded. A TPU keeps the last two axes in tiles, so the last one stays alone.


_FEW_ROWS = 128


class Linear(NamedTuple):
    """A projection by one matrix.

    weight: [*out, K], plain or quantised. bias: [*out]. parted: K is split over devices, which add up their parts of
    the sum in x's type, at half of float32's bytes where that is a short one.
    """

    weight: Matrix
    bias: jax.Array | None = None
    parted: bool = False

    @staticmethod
    def of(parameter: nnx.Param | QuantizedParam, bias: jax.Array | None = None) -> "Linear":
        """The projection by a parameter of `matrix`."""
        parted = isinstance(parameter, nnx.Param) and parameter.get_metadata()["parted"]
        return Linear(held(parameter), bias, parted)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [T, *in], whose axes after the first are K in all, to [T, *out] in x's type; the sum is in float32."""
        columns = self.weight.shape[-1]
        rounded = self.parted or self.bias is None
        out = _product(_settled(x.reshape(x.shape[0], columns)), self.weight, self.parted, rounded)
        if self.bias is not None:
            out = out + self.bias.astype(jnp.float32).reshape(-1)
        return _settled(out.astype(x.dtype)).reshape(x.shape[0], *self.weight.shape[:-1])

    def sums(self, x: jax.Array) -> jax.Array:
        """x [T, K] to [T, N] float32, N being all of `out`: not rounded to x's type."""
        out = _product(x, self.weight)
        return out if self.bias is None else out + self.bias.astype(jnp.float32)


class GroupedLinear(NamedTuple):
    """Projections of rows that are sorted by group, as by expert, each by the matrix of its group.

    weight: [E, *out, K]. backend: of `grouped_matmul`. over: mesh axes that K is split over, in a shard_map: weight and
    x are one device's parts, and so is the sum.
    """

    weight: Matrix
    backend: str
    over: Split = ()

    def __call__(self, x: jax.Array, sizes: jax.Array) -> jax.Array:
        """x [R, K] to [R, N] in x's type, N being all of `out`; 0 for rows of no group. sizes: [E] int32, the rows of
        each group."""
        if isinstance(self.weight, QuantizedArray):
            return quantized_grouped_product(x, self.weight.flattened(1), sizes, self.backend, self.over)
        weight = self.weight.reshape(self.weight.shape[0], -1, self.weight.shape[-1])
        return grouped_matmul(x, weight, sizes, backend=self.backend)


def _settled(x: jax.Array) -> jax.Array:
    """x, a matrix whose layout is its own: XLA for TPU would give it that of the axes it is made of or cut into, and
    copy the weight in every step to match (compiled for a v6e: the whole of qkv)."""
    return jax.lax.platform_dependent(x, tpu=jax.lax.optimization_barrier, default=lambda x: x)


def _product(x: jax.Array, weight: Matrix, parted: bool = False, rounded: bool = False) -> jax.Array:
    """x [T, K] times the transpose of weight [*out, K]: [T, N] float32, N being all of `out`. parted: of Linear.
    rounded: the product is rounded to x's type next, and may be already, and of it."""
    if isinstance(weight, QuantizedArray):
        return quantized_product(x, weight.flattened()) if weight.shards is None else _shared(x, weight, weight.shards)
    if isinstance(weight, StackLayer):
        out = x.dtype if rounded else jnp.dtype(jnp.float32)
        return native_product(x, weight.reshape(-1, weight.shape[-1]), out_dtype=out)
    return _plain_product(x, weight.reshape(-1, weight.shape[-1]), parted, rounded)


def _plain_product(x: jax.Array, weight: jax.Array, parted: bool, rounded: bool) -> jax.Array:
    """x [T, K] times the transpose of weight [N, K]: [T, N] float32."""
    if parted:
        return _rounded_dot(x, weight)
    if rounded and x.shape[0] > _FEW_ROWS and x.dtype != jnp.float32:
        # XLA for a GPU would write float32 and round it in a kernel of its own: 2.5 ms of 30 in a prefill of 1,024
        # tokens of Llama-3.1-8B on an H100. Few rows might have parts of their sums rounded.
        return jax.lax.platform_dependent(x, weight, cuda=_rounded_dot, default=_dot)
    return _dot(x, weight)


def _shared(x: jax.Array, weight: QuantizedArray, shards: Shards) -> jax.Array:
    """The product in shard_map, each device with its part: a kernel is one device's program, which XLA cannot split.

    Where K is split, devices add up their parts of the sum, once, in x's type.
    """
    *out, over = shards.axes

    def local(x: jax.Array, weight: QuantizedArray) -> jax.Array:
        product = quantized_product(x, weight.flattened(), over)
        if over:
            product = jax.lax.psum(product.astype(x.dtype), over).astype(jnp.float32)
        return product.reshape(len(x), *weight.shape[:-1])

    taken = (spec((), over), weight.specs(shards.axes))
    return per_device(local, shards.mesh, taken, spec((), *out))(x, weight).reshape(len(x), -1)


def _rounded_dot(x: jax.Array, weight: jax.Array) -> jax.Array:
    return _dot(x, weight, x.dtype).astype(jnp.float32)


def _dot(x: jax.Array, weight: jax.Array, out: jnp.dtype = jnp.float32) -> jax.Array:
    """out: the type that a device's sum, in float32, is rounded to before devices add theirs up."""
    return jax.lax.dot_general(
        x, weight, (((1,), (1,)), ((), ())), precision=precision(x.dtype), preferred_element_type=out
    )
