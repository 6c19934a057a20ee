"""AllocationFailure: what is known of a sequence that found too few blocks."""

from collections import abc
from typing import NamedTuple

from jaxinfer.engine.sequence import Sequence


class AllocationFailure(NamedTuple):
    """available: blocks that were there, an entry a KV group. missing: how many more of a group it needed."""

    sequence: Sequence
    available: list[int]
    missing: int

    def persists(self, sequence: Sequence, available: abc.Sequence[int]) -> bool:
        """True where this is the sequence and no group has more blocks by now.

        To match a long prompt again in every step would cost more than the rest of the step.
        """
        return self.sequence is sequence and all(
            now <= then for now, then in zip(available, self.available, strict=True)
        )
