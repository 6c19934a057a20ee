"""The parts of a quantised matrix as a checkpoint holds them. No jax."""

from dataclasses import dataclass
from typing import NamedTuple

from jaxinfer.checkpoint.quantized.groups import ColumnOrder, GroupNumbers, SortedColumns
from jaxinfer.checkpoint.quantized.scales import spread
from jaxinfer.checkpoint.quantized.values import Values
from jaxinfer.checkpoint.sources import Source
from jaxinfer.quantization.formats import held_group
from jaxinfer.quantization.scheme import Part


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

    def source(self, part: Part) -> Source:
        """A part but `order` as the device holds it: columns in the order of their groups, with scales and zeros for
        groups of one length."""
        assert part != "order"
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

    @property
    def values(self) -> Source:
        """The values, float32."""
        return Values(self.codes, self.scales, self.group, self.zeros, self.groups)
