"""The parts of a quantised matrix as a checkpoint holds them. No jax."""

from dataclasses import dataclass

from jaxinfer.checkpoint.quantized.groups import ColumnOrder, GroupNumbers, SortedColumns
from jaxinfer.checkpoint.quantized.scales import spread
from jaxinfer.checkpoint.quantized.values import Values
from jaxinfer.checkpoint.sources import Source
from jaxinfer.quantization.formats import held_group
from jaxinfer.quantization.scheme import Part


@dataclass(frozen=True)
class Parts:
    """Codes [N, K]; scales and zeros [N, groups], one for `group` columns in a row, or for those that `groups` [K]
    says."""

    codes: Source
    scales: Source
    group: int
    zeros: Source | None = None
    groups: GroupNumbers | None = None

    def source(self, part: Part) -> Source:
        """A part but `order` as the device holds it: columns in the order of their groups, with scales and zeros for
        groups of one length."""
        assert part != "order"
        if part == "codes":
            return self.codes if self.groups is None else SortedColumns(self.codes, ColumnOrder(self.groups))
        source = self.scales if part == "scales" else self.zeros
        assert source is not None
        depth = self.codes.shape[-1]
        held = held_group(depth, self.group) or depth
        return spread(source, len(source.shape) - 1, min(self.group, depth) // held, depth // held)

    @property
    def values(self) -> Source:
        """The values, float32."""
        return Values(self.codes, self.scales, self.group, self.zeros, self.groups)
