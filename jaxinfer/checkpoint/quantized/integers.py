"""Matrices in int4 and int8 as compressed-tensors, AutoAWQ and GPTQ lay them. No jax."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxinfer.checkpoint.quantized.groups import GroupNumbers
from jaxinfer.checkpoint.quantized.packing import Unpacked, unpacked, words
from jaxinfer.checkpoint.quantized.parts import Parts
from jaxinfer.checkpoint.quantized.scales import GroupScales, OfRows, row_scales
from jaxinfer.checkpoint.sources import Index, Read, Shape, Source, Tensor, TensorFault, Turned
from jaxinfer.quantization.formats import Awq, Gptq, Integers

_INT32 = ("I32",)
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place of each of eight columns in a word, from the lowest bits: AutoAWQ packs columns 0, 2, 4, 6, 1, 3, 5, 7."""


def integer_parts(form: Integers, module: str, shape: tuple[int, int]) -> Parts:
    """Unsigned codes and zeros of packed tensors become signed ones. shape: [N, K]."""
    rows, depth = shape
    group, half = form.group or depth, 2 ** (form.bits - 1)
    count = -(-depth // group)
    codes: Source = Tensor(f"{module}.weight", shape, ("I8",))
    zeros: Source = Tensor(f"{module}.weight_zero_point", (rows, count), ("I8",))
    if form.packed:
        packed = Tensor(f"{module}.weight_packed", (rows, words(depth, form.bits)), _INT32)
        codes = unpacked(packed, 1, form.bits, depth, less=half)
        packed = Tensor(f"{module}.weight_zero_point", (words(rows, form.bits), count), _INT32)
        zeros = unpacked(packed, 0, form.bits, rows, less=half)
    elif form.group is None:
        zeros = OfRows(Tensor(f"{module}.weight_zero_point", (rows, 1), ("I8",), ((rows,), (), (1,), (1, 1))))
    name = f"{module}.weight_scale"
    scales = row_scales(name, rows) if form.group is None else GroupScales(Tensor(name, (rows, count)))
    groups = group_numbers(form, module, depth) if form.act_order else None
    return Parts(codes, scales, group, zeros if form.zeros else None, groups)


def awq_parts(form: Awq, module: str, shape: tuple[int, int]) -> Parts:
    """Codes and zeros less 8. shape: [N, K]; its tensors are turned."""
    rows, depth = shape
    group, across = form.group or depth, words(rows, 4)
    count = -(-depth // group)

    def read(name: str, length: int) -> Source:
        tensor = Tensor(f"{module}.{name}", (length, across), _INT32)
        return Turned(Unpacked(tensor, 1, rows, 4, _AWQ_ORDER, less=8), (1, 0))

    scales = Turned(GroupScales(Tensor(f"{module}.scales", (count, rows))), (1, 0))
    return Parts(read("qweight", depth), scales, group, read("qzeros", count))


def gptq_parts(form: Gptq, module: str, shape: tuple[int, int]) -> Parts:
    """Codes and zeros less 2 ** (bits - 1). shape: [N, K]; its tensors are turned."""
    rows, depth = shape
    group, half = form.group or depth, 2 ** (form.bits - 1)
    count = -(-depth // group)
    packed = Tensor(f"{module}.qweight", (words(depth, form.bits), rows), _INT32)
    codes: Source = Turned(unpacked(packed, 0, form.bits, depth, less=half), (1, 0))
    packed = Tensor(f"{module}.qzeros", (count, words(rows, form.bits)), _INT32)
    zeros: Source = Turned(unpacked(packed, 1, form.bits, rows, plus=form.less, less=half), (1, 0))
    scales: Source = Turned(GroupScales(Tensor(f"{module}.scales", (count, rows))), (1, 0))
    groups = group_numbers(form, module, depth)
    if form.symmetric:
        scales = _Symmetric(scales, zeros)
    if not form.act_order:
        codes = _InOrder(codes, groups.tensor, group)
    return Parts(codes, scales, group, None if form.symmetric else zeros, groups if form.act_order else None)


def group_numbers(form: Gptq | Integers, module: str, depth: int) -> GroupNumbers:
    """Return the group number of each of a matrix's columns, [depth]."""
    if isinstance(form, Gptq):
        return GroupNumbers(Tensor(f"{module}.g_idx", (depth,), _INT32), form.group or depth)
    tensor = Tensor(f"{module}.weight_g_idx", (depth,), ("I32", "I64"))
    return GroupNumbers(tensor, form.group or depth, unset=True)


@dataclass(frozen=True)
class _Symmetric:
    """Scales [N, groups] whose zeros are all 0. Raises TensorFault where one is not."""

    scales: Source
    zeros: Source

    @property
    def shape(self) -> Shape:
        return self.scales.shape

    @property
    def tensors(self) -> Iterator[Tensor]:
        yield from self.scales.tensors
        yield from self.zeros.tensors

    def read(self, index: Index, read: Read) -> np.ndarray:
        if self.zeros.read(index, read).any():
            name = next(iter(self.zeros.tensors)).name
            raise TensorFault(name, "has a zero off the middle, though quantization_config: sym is true")
        return self.scales.read(index, read)


@dataclass(frozen=True)
class _InOrder:
    """Codes [N, K] whose columns are in groups as they lie. Raises TensorFault where `groups` [K] says otherwise."""

    codes: Source
    groups: Tensor
    group: int

    @property
    def shape(self) -> Shape:
        return self.codes.shape

    @property
    def tensors(self) -> Iterator[Tensor]:
        yield from self.codes.tensors
        yield self.groups

    def read(self, index: Index, read: Read) -> np.ndarray:
        first, last, _ = index[1].indices(self.shape[1])
        numbers = self.groups.read((slice(first, last),), read)
        if (numbers != np.arange(first, last) // self.group).any():
            raise TensorFault(
                self.groups.name, "has columns in another order, though quantization_config: desc_act is false"
            )
        return self.codes.read(index, read)
