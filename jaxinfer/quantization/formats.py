"""Formats of a quantised matrix [N, K] in a checkpoint, and the scheme that holds it on the device. Imports no jax."""

import math
from dataclasses import dataclass
from typing import Literal

from jaxinfer.quantization.scheme import Activations, Scheme

MXFP4_GROUP, NVFP4_GROUP = 32, 16


def held_group(depth: int, group: int | None) -> int | None:
    """Values of a row of `depth` that share a scale on the device, None for all, where `group` do in the checkpoint.

    Where the last group is shorter than the others, a part of a group that divides `depth`: scales are repeated, and
    nothing is padded.
    """
    return None if group is None or group >= depth else math.gcd(depth, group)


@dataclass(frozen=True)
class Fp8:
    """`weight` in e4m3 and its scales, the tensor `scales`.

    block: rows and columns that share a scale; None: a scale for all of it, or one for each row.
    """

    block: tuple[int, int] | None = None
    scales: Literal["weight_scale_inv", "weight_scale"] = "weight_scale_inv"

    def scheme(self, depth: int) -> Scheme:
        """Activations stay as they are."""
        return Scheme("e4m3", held_group(depth, None if self.block is None else self.block[1]))

    def __str__(self) -> str:
        return "fp8" if self.block is None else f"fp8 in blocks of {self.block[0]} x {self.block[1]}"


@dataclass(frozen=True)
class Integers:
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

    def __str__(self) -> str:
        return f"compressed-tensors' int{self.bits}" + (" in the order of activations" if self.act_order else "")


@dataclass(frozen=True)
class Awq:
    """AutoAWQ's GEMM form, 4 bits: `qweight`, `qzeros`, `scales`. group: columns that share a scale, None for all."""

    group: int | None

    def scheme(self, depth: int) -> Scheme:
        """Codes and zeros less 8."""
        return Scheme("int4", held_group(depth, self.group), zeros=True)

    def __str__(self) -> str:
        return "AWQ"


@dataclass(frozen=True)
class Gptq:
    """`qweight`, `qzeros`, `scales`, `g_idx`.

    group: columns that share a scale, None for all. symmetric: all zeros are 2 ** (bits - 1). less: what was taken off
    zeros before they were packed, 1 in the first version of the form. act_order: columns are in groups by `g_idx`.
    """

    bits: Literal[4, 8]
    group: int | None
    symmetric: bool
    less: Literal[0, 1] = 1
    act_order: bool = False

    def scheme(self, depth: int) -> Scheme:
        """Codes and zeros less 2 ** (bits - 1)."""
        codes, group = "int4" if self.bits == 4 else "int8", held_group(depth, self.group)
        return Scheme(codes, group, not self.symmetric, ordered=self.act_order and group is not None)

    def __str__(self) -> str:
        return f"GPTQ of {self.bits} bits" + (" in the order of activations" if self.act_order else "")


@dataclass(frozen=True)
class Mxfp4:
    """e2m1, two in a byte, with an e8m0 scale for MXFP4_GROUP.

    experts: those of gpt-oss, `_blocks` and `_scales`; otherwise compressed-tensors' `weight_packed` and
    `weight_scale`.
    """

    experts: bool

    def scheme(self, depth: int) -> Scheme:
        """Return the scheme that holds the checkpoint's codes as they are. Activations are not rounded."""
        return Scheme("e2m1", held_group(depth, MXFP4_GROUP), scales="e8m0")

    def __str__(self) -> str:
        return "MXFP4"


@dataclass(frozen=True)
class Nvfp4:
    """e2m1, two in a byte, with an e4m3 scale for NVFP4_GROUP and a float32 scale for all.

    compressed: compressed-tensors' `weight_packed`, divided by `weight_global_scale`; otherwise modelopt's `weight`,
    multiplied by `weight_scale_2`.
    """

    compressed: bool

    def scheme(self, depth: int) -> Scheme:
        """The scale for all is the factor of each row. Activations stay as they are."""
        return Scheme("e2m1", held_group(depth, NVFP4_GROUP), scales="e4m3", factors=True)

    def __str__(self) -> str:
        return "NVFP4"


TensorFormat = Fp8 | Integers | Awq | Gptq | Mxfp4 | Nvfp4
