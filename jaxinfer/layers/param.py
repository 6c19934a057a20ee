"""Parameters as descriptions: shape, type, logical axes and scale, from which arrays are made later."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxinfer_kernels.stack import StackLayer, alone

from jaxinfer.parallel.shards import Shards
from jaxinfer.quantization.array import MatrixShape, QuantizedArray, part_form
from jaxinfer.quantization.scheme import Scheme

Axes = tuple[str | None, ...]


class Vector(NamedTuple):
    """One small weight of a layer. std: of random values; None: all ones less `offset`. dtype: the type that it is kept
    in; None: the model's."""

    shape: tuple[int, ...]
    axes: Axes
    std: float | None = None
    offset: float = 0.0
    dtype: str | None = None


def param(
    shape: Sequence[int], axes: Sequence[str | None], dtype: jnp.dtype, std: float | None, offset: float = 0.0
) -> nnx.Param:
    """A parameter whose value is a ShapeDtypeStruct.

    axes: a logical name for each axis, see `jaxinfer.parallel.rules`. std: of random values; None: all 1 - offset.
    """
    if len(shape) != len(axes):
        raise ValueError(f"shape {tuple(shape)} and axes {tuple(axes)} differ in length")
    return nnx.Param(jax.ShapeDtypeStruct(tuple(shape), dtype), axes=tuple(axes), std=std, offset=offset)


def lead_axes(axes: Sequence[str | None]) -> int:
    """Count a weight's leading axes, layers and experts, which number its matrices."""
    return sum(axis in ("layers", "expert") for axis in axes)


def matrix_shape(shape: Sequence[int], axes: Sequence[str | None], scheme: Scheme) -> MatrixShape:
    """Return the shape of each matrix [..., K] of a weight: rows are all axes between `lead_axes` and the last."""
    return MatrixShape(math.prod(shape[lead_axes(axes) : -1]), shape[-1], scheme)


class QuantizedParam(nnx.Module):
    """A matrix that a scheme holds: a parameter for each of its parts.

    shape, axes, dtype: those of its values. Of the axes of rows only the first can be split: parts other than codes
    have no others. backend: of the kernels that multiply it. shards: how a mesh splits each matrix of it, which
    `LoadedModel.build` says.
    """

    def __init__(
        self, shape: Sequence[int], axes: Sequence[str | None], dtype: jnp.dtype, std: float | None, scheme: Scheme
    ):
        self.scheme, self.backend = scheme, "xla"
        self.shards: Shards | None = None
        lead = lead_axes(axes)
        inner = (None,) * (len(axes) - lead - 2)
        self.shape, self.axes = tuple(shape), (*axes[: lead + 1], *inner, axes[-1])
        for part in scheme.parts:
            held = part_form(scheme, part, shape, "types", lead)
            source = {"scheme": scheme, "dtype": dtype} if part == "codes" else {}
            setattr(self, part, nnx.Param(held, axes=self.axes, std=std, offset=0.0, part=part, **source))

    @property
    def value(self) -> QuantizedArray:
        """The quantised array that it holds."""
        parts = {part: getattr(self, part).get_value() for part in self.scheme.parts}
        return QuantizedArray(self.scheme, **parts, backend=self.backend, shards=self.shards)


Matrix = jax.Array | StackLayer | QuantizedArray
"""A StackLayer is multiplied by native kernels."""


def matrix(
    shape: Sequence[int], axes: Sequence[str | None], dtype: jnp.dtype, std: float, scheme: Scheme | None
) -> nnx.Param | QuantizedParam:
    """A parameter that products are taken with, [..., K], held as `scheme` says. `LoadedModel.merged` says what
    multiplies a plain one, xla or native, and whether devices share K and add up their parts."""
    if scheme is None:
        plain = param(shape, axes, dtype, std)
        plain.set_metadata(backend="xla", parted=False)
        return plain
    return QuantizedParam(shape, axes, dtype, std, scheme)


def value(parameter: nnx.Param) -> jax.Array:
    """The array that a parameter holds."""
    return parameter[...]


def held(parameter: nnx.Param | QuantizedParam) -> Matrix:
    """Return the matrix that a parameter holds."""
    if isinstance(parameter, QuantizedParam):
        return parameter.value
    found = parameter.get_value()
    if parameter.get_metadata()["backend"] == "xla" or isinstance(found, StackLayer):
        return found
    return alone(found)


def precision(dtype: jnp.dtype) -> jax.lax.Precision | None:
    """float32 means float32: GPUs and TPUs multiply it in a shorter type by default."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None
