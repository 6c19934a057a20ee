"""QuantizedArray: a weight as its scheme holds it on the device, and how values become one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxinfer_kernels.cpu.packed import BLOCK, PACKED, is_packed, pack, unpack, values_shape
from jaxinfer_kernels.stack import StackLayer

from jaxinfer.parallel.rules import Split
from jaxinfer.parallel.shards import Shards, spec
from jaxinfer.parallel.tpu_tiles import tiled_bytes
from jaxinfer.quantization.scheme import Activations, CodeType, Part, ScaleType, Scheme

CODE_TYPES: dict[CodeType, jnp.dtype] = {
    "int8": jnp.dtype(jnp.int8),
    "int4": jnp.dtype(jnp.int4),
    "e4m3": jnp.dtype(jnp.float8_e4m3fn),
    "e2m1": jnp.dtype(jnp.float4_e2m1fn),
}
SCALE_TYPES: dict[ScaleType, jnp.dtype] = {
    "float32": jnp.dtype(jnp.float32),
    "e8m0": jnp.dtype(jnp.float8_e8m0fnu),
    "e4m3": jnp.dtype(jnp.float8_e4m3fn),
}
_IN_BYTES: dict[CodeType, CodeType] = {"int4": "int8", "e2m1": "e4m3"}
_HALF_BYTES = (CODE_TYPES["int4"], CODE_TYPES["e2m1"])
LARGEST_SCALE = 448.0
"""Largest value of e4m3."""
_LARGEST = {"int8": 127.0, "e4m3": 448.0, "e2m1": 6.0}
_INVERSE = {codes: np.float32(1) / np.float32(largest) for codes, largest in _LARGEST.items()}
"""Multiplied with: XLA makes that of a division by a constant, in some programs."""


def stored_bytes(shape: Sequence[int], dtype: jnp.dtype) -> int:
    """Bytes of an array whose types of four bits, which only GPUs and TPUs hold, take half a byte a value."""
    bits = 4 if dtype in _HALF_BYTES else 8 * dtype.itemsize
    return -(-math.prod(shape) * bits // 8)


def held_bytes(shape: Sequence[int], dtype: jnp.dtype, platform: str, order: Sequence[int] | None = None) -> int:
    """Bytes that an array takes of a platform's device, with what fills up a TPU's tiles. order: its axes, the minor
    one last, where it does not lie as XLA likes best."""
    if platform != "tpu":
        return stored_bytes(shape, dtype)
    return tiled_bytes(shape, 4 if dtype in _HALF_BYTES else 8 * dtype.itemsize, order)


FourBits = Literal["types", "packed", "bytes"]
"""Forms of four-bit codes: `types`, in JAX's types; `packed`, int4 two in a byte if K and its groups are multiples of
BLOCK, other codes as `bytes`; or `bytes`, each in a byte, int4 as int8 and e2m1 as e4m3, as in folders of leaves."""
Array = TypeVar("Array", np.ndarray, jax.Array)


def four_bits(platform: str, devices: int) -> FourBits:
    """Return how a mesh of so many of a platform's devices holds codes of four bits.

    JAX's programs on a CPU refuse types of four bits beside an array with a layout of its own (jax 0.10.2 to 0.12.0),
    and take a byte for a value of them. One device packs int4; meshes of several, which are for experiments, do not:
    their parts of a row would have to begin on a block.
    """
    if platform != "cpu":
        return "types"
    return "packed" if devices == 1 else "bytes"


def part_form(scheme: Scheme, part: Part, shape: Sequence[int], held: FourBits, lead: int = 0) -> jax.ShapeDtypeStruct:
    """Shape and type of a part's array, of values of this shape, whose first `lead` axes are of matrices. Raises
    ModelError as `Scheme.shape` does."""
    own = scheme.shape(part, shape, lead)
    if part == "order":
        return jax.ShapeDtypeStruct(own, jnp.int32)
    if part != "codes":
        return jax.ShapeDtypeStruct(own, SCALE_TYPES[scheme.scales if part == "scales" else "float32"])
    if held == "packed" and scheme.codes == "int4" and math.gcd(own[-1], scheme.group or BLOCK) % BLOCK == 0:
        return jax.ShapeDtypeStruct((*own[:-1], own[-1] // 2), PACKED)
    codes = scheme.codes if held == "types" else _IN_BYTES.get(scheme.codes, scheme.codes)
    return jax.ShapeDtypeStruct(own, CODE_TYPES[codes])


def as_held(part: Array, dtype: jnp.dtype) -> Array:
    """A part of a weight, one value an element, in the type that it is held in. Traceable."""
    return pack(part) if dtype == PACKED else part.astype(dtype)


def in_bytes(part: jax.Array) -> jax.Array:
    """A part of a weight, one value an element: packed codes become int8. Traceable."""
    return unpack(part) if is_packed(part) else part


class MatrixShape(NamedTuple):
    """Properties of a quantised matrix [N, K] that the speed of a product with it depends on."""

    rows: int
    columns: int
    scheme: Scheme


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("codes", "scales", "zeros", "order", "factors"),
    meta_fields=("scheme", "backend", "shards"),
)
@dataclass(frozen=True)
class QuantizedArray:
    """A weight [..., *rows, K]: codes of that shape, or packed; scales [..., N, K / group] of the scheme's type, N
    being all rows, zeros as they in float32; order [K], or [E, K] of experts, int32: column k of the codes is column
    order[k] of the values; factors [..., N, 1] float32.

    codes, scales and zeros may be a layer of stacks (`StackLayer`). backend: of the kernels that multiply it. shards:
    how the devices of a mesh share it; None: there is one device, or this is one device's part.
    """

    scheme: Scheme
    codes: jax.Array
    scales: jax.Array
    zeros: jax.Array | None = None
    order: jax.Array | None = None
    factors: jax.Array | None = None
    backend: str = "xla"
    shards: Shards | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return values_shape(self.codes)

    def flattened(self, lead: int = 0) -> "QuantizedArray":
        """All axes between the first `lead` and the last made one, as they are in all parts but the codes."""
        shape = self.codes.shape
        return replace(self, codes=self.codes.reshape(*shape[:lead], -1, shape[-1]))

    def specs(self, axes: Sequence[Split], lead: int = 0) -> "QuantizedArray":
        """A PartitionSpec in place of each part, for values that are split over these mesh axes; `lead` of the axes are
        of matrices. A device gets the order of its own columns."""

        def of(part: Part) -> PartitionSpec | StackLayer:
            split = (*axes[:lead], axes[-1]) if part == "order" else self.scheme.axes(part, axes, lead)
            return weight_spec(getattr(self, part), *split)

        return replace(self, **{part: of(part) for part in self.scheme.parts})

    def __getitem__(self, index: jax.Array) -> jax.Array:
        """Rows of a matrix [N, K] without order and factors, by numbers [T]: their values [T, K] float32."""
        assert self.order is None
        assert self.factors is None
        cut = in_bytes(self.codes[index]).astype(jnp.float32).reshape(*index.shape, self.scales.shape[-1], -1)
        if self.zeros is not None:
            cut = cut - self.zeros[index][..., None]
        return (cut * self.scales[index].astype(jnp.float32)[..., None]).reshape(*index.shape, -1)


def weight_spec(weight: jax.Array | StackLayer, *axes: Split | None) -> PartitionSpec | StackLayer:
    """The PartitionSpec of a weight whose axes are split so; of a layer of a stack, those of its parts."""
    own = spec(*axes)
    if not isinstance(weight, StackLayer):
        return own
    parts: Any = (PartitionSpec(None, *own), PartitionSpec())
    return StackLayer(*parts)


def quantise(values: jax.Array, scheme: Scheme) -> tuple[jax.Array, ...]:
    """values [..., K], of a floating type, to the parts of a scheme without zeros, order and factors. Traceable.

    The largest absolute value of a group becomes the largest code. int4 has one code more below zero than above it: the
    largest value, of either sign, becomes -8, so that a scale may be negative (llama.cpp's q4_0).
    """
    assert not scheme.zeros
    assert not scheme.ordered
    assert not scheme.factors
    groups = scheme.groups(values.shape[-1])
    cut = values.astype(jnp.float32).reshape(*values.shape[:-1], groups, -1)
    if scheme.codes == "int4":
        largest = jnp.take_along_axis(cut, jnp.argmax(jnp.abs(cut), axis=-1, keepdims=True), axis=-1)[..., 0]
        scales = largest / -8.0
    else:
        scales = jnp.max(jnp.abs(cut), axis=-1) * _INVERSE[scheme.codes]
    scales = jnp.where(scales == 0, 1.0, scales)
    if scheme.scales == "e8m0":
        scales = powers_above(scales)
    codes = _rounded(cut / scales.astype(jnp.float32)[..., None], scheme.codes)
    return codes.reshape(values.shape), scales


def powers_above(scales: jax.Array) -> jax.Array:
    """The least powers of two that are no smaller, e8m0: the exponents of float32."""
    bits = jax.lax.bitcast_convert_type(scales, jnp.int32) + (2**23 - 1)
    return jax.lax.bitcast_convert_type((bits >> 23).astype(jnp.uint8), SCALE_TYPES["e8m0"])


def quantise_rows(x: jax.Array, form: Activations, over: Split = ()) -> tuple[jax.Array, jax.Array]:
    """x [T, K] to codes of that form and a scale a row, [T, 1] float32. over: mesh axes that K is split over, in a
    shard_map: the devices agree on the scale."""
    assert form != "none"
    wide = x.astype(jnp.float32)
    most = jnp.max(jnp.abs(wide), axis=-1, keepdims=True)
    if over:
        most = jax.lax.pmax(most, over)
    scales = most * _INVERSE[form]
    scales = jnp.where(scales == 0, 1.0, scales)  # also where the largest is so small that its scale is 0
    return _rounded(wide / scales, form), scales


def _rounded(values: jax.Array, codes: CodeType) -> jax.Array:
    """To the nearest code, of two the even one."""
    if codes in ("e4m3", "e2m1"):
        return jnp.clip(values, -_LARGEST[codes], _LARGEST[codes]).astype(CODE_TYPES[codes])
    low, high = (-8, 7) if codes == "int4" else (-127, 127)
    return jnp.clip(jnp.round(values), low, high).astype(CODE_TYPES[codes])
