"""The parts of a quantised matrix as a checkpoint holds them. No jax."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from jaxinfer.checkpoint.formats.parts.groups import ColumnOrder, GroupNumbers, SortedColumns
from jaxinfer.checkpoint.formats.parts.scales import spread
from jaxinfer.checkpoint.formats.parts.values import Values
from jaxinfer.checkpoint.sources import Source
from jaxinfer.quantization.scheme import Part

TensorPart = Literal["weight", "bias"] | Part
"""Part of a module that is read: its values, its bias, or a part of quantised values."""


class Factored(NamedTuple):
    """Scales as products of short ones, [N, groups], and a factor for each row, [N, 1] float32."""

    scales: Source
    factors: Source


@dataclass(frozen=True)
class Parts:
    """Codes [N, K]; scales and zeros [N, groups], one for `group` columns in a row, or for those that `groups` [K]
    says. factored: what the device holds in place of scales, as exact as float32 is."""

    codes: Source
    scales: Source
    group: int
    zeros: Source | None = None
    groups: GroupNumbers | None = None
    factored: Factored | None = None

    def source(self, part: TensorPart) -> Source:
        """The values, float32, or a part of them but `order` as the device holds it: columns in the order of their
        groups, with scales and zeros for groups of one length."""
        assert part not in ("bias", "order")
        if part == "weight":
            return Values(self.codes, self.scales, self.group, self.zeros, self.groups)
        if part == "codes":
            return self.codes if self.groups is None else SortedColumns(self.codes, ColumnOrder(self.groups))
        scales, factors = self.factored or (self.scales, None)
        source = {"scales": scales, "zeros": self.zeros, "factors": factors}[part]
        assert source is not None
        if part == "factors":
            return source
        depth = self.codes.shape[-1]
        held = held_group(depth, self.group) or depth
        return spread(source, len(source.shape) - 1, min(self.group, depth) // held, depth // held)


def held_group(depth: int, group: int | None) -> int | None:
    """Values of a row of `depth` that share a scale on the device, None for all, where `group` do in the checkpoint.

    Where the last group is shorter than the others, a part of a group that divides `depth`: scales are repeated, and
    nothing is padded.
    """
    return None if group is None or group >= depth else math.gcd(depth, group)
