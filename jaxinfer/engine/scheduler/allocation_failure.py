"""AllocationFailure: what is known of a request that found too few pages."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxinfer.engine.sequence import Request


class AllocationFailure(NamedTuple):
    """available: pages that were there, an entry a KV group. missing: how many more of a group it needed."""

    request: Request
    available: list[int]
    missing: int

    def persists(self, request: Request, available: Sequence[int]) -> bool:
        """True where this is the request and no group has more pages by now.

        To match a long prompt again in every step would cost more than the rest of the step.
        """
        return self.request is request and all(now <= then for now, then in zip(available, self.available, strict=True))
