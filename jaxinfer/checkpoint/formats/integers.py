"""Matrices in int4 and int8 as compressed-tensors lays them. Imports no jax."""

from dataclasses import dataclass
from typing import Literal

from jaxinfer.checkpoint.formats.format import TensorFormat
from jaxinfer.checkpoint.formats.parts.groups import GroupNumbers
from jaxinfer.checkpoint.formats.parts.packing import WORDS, unpacked, words
from jaxinfer.checkpoint.formats.parts.scales import GroupScales, OfRows, row_scales
from jaxinfer.checkpoint.formats.parts.stored import Parts, held_group
from jaxinfer.checkpoint.sources import Shape, Source, Tensor
from jaxinfer.quantization.scheme import Activations, Scheme


@dataclass(frozen=True)
class Integers(TensorFormat):
    """compressed-tensors' `weight` in int8, or `weight_packed` with 32 / bits values in an int32; `weight_scale`.

    group: columns that share a scale, None for all. zeros: `weight_zero_point`, packed along rows. act_order: columns
    are in groups by `weight_g_idx`.
    """

    bits: Literal[4, 8]
    packed: bool
    group: int | None
    zeros: bool = False
    activations: Activations = "none"
    act_order: bool = False

    def scheme(self, depth: int) -> Scheme:
        """Codes that are not packed stay int8, of however many bits they are."""
        codes, group = "int4" if self.packed and self.bits == 4 else "int8", held_group(depth, self.group)
        return Scheme(codes, group, self.zeros, self.activations, ordered=self.act_order and group is not None)

    def parts(self, module: str, shape: Shape) -> Parts:
        """Unsigned codes and zeros of packed tensors become signed ones."""
        rows, depth = shape
        group, half = self.group or depth, 2 ** (self.bits - 1)
        count = -(-depth // group)
        codes: Source = Tensor(f"{module}.weight", shape, ("I8",))
        zeros: Source = Tensor(f"{module}.weight_zero_point", (rows, count), ("I8",))
        if self.packed:
            packed = Tensor(f"{module}.weight_packed", (rows, words(depth, self.bits)), WORDS)
            codes = unpacked(packed, 1, self.bits, depth, less=half)
            packed = Tensor(f"{module}.weight_zero_point", (words(rows, self.bits), count), WORDS)
            zeros = unpacked(packed, 0, self.bits, rows, less=half)
        elif self.group is None:
            zeros = OfRows(Tensor(f"{module}.weight_zero_point", (rows, 1), ("I8",), ((rows,), (), (1,), (1, 1))))
        name = f"{module}.weight_scale"
        scales = row_scales(name, rows) if self.group is None else GroupScales(Tensor(name, (rows, count)))
        groups = self.groups(module, depth) if self.act_order else None
        return Parts(codes, scales, group, zeros if self.zeros else None, groups)

    def groups(self, module: str, depth: int) -> GroupNumbers:
        tensor = Tensor(f"{module}.weight_g_idx", (depth,), ("I32", "I64"))
        return GroupNumbers(tensor, self.group or depth, unset=True)

    def __str__(self) -> str:
        return f"compressed-tensors' int{self.bits}" + (" in the order of activations" if self.act_order else "")
