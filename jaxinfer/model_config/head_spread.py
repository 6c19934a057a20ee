"""HeadSpread: where a checkpoint's heads lie on a mesh that they do not divide over. No jax."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jaxinfer.errors import ParameterError

Order = tuple[int | None, ...]
"""The checkpoint's head in each place; None for zeros."""

_MOST_EMPTY = 0.25
"""Largest share of query heads that may be empty, among those that are computed."""


@dataclass(frozen=True)
class HeadSpread:
    """Heads of an attention as its weights and pages have them, made of those of a checkpoint.

    query_heads, kv_heads: the checkpoint's. copies: how many shards hold each KV head; a copy has a part of its query
    heads. groups: KV heads before they are copied, with those of zeros that follow the checkpoint's.
    """

    query_heads: int
    kv_heads: int
    copies: int
    groups: int

    @property
    def own_group_size(self) -> int:
        """Query heads of each KV head in the checkpoint."""
        return self.query_heads // self.kv_heads

    @property
    def group_size(self) -> int:
        """Query heads of each KV head as it lies, those of zeros among them."""
        return -(-self.own_group_size // self.copies)

    @property
    def num_kv_heads(self) -> int:
        """KV heads as they lie."""
        return self.groups * self.copies

    @property
    def num_heads(self) -> int:
        """Query heads as they lie."""
        return self.num_kv_heads * self.group_size

    @property
    def padded(self) -> bool:
        """There are heads of zeros."""
        return self.num_heads > self.query_heads

    @property
    def empty(self) -> float:
        """The share of query heads that are zeros."""
        return 1 - self.query_heads / self.num_heads

    @property
    def kv_order(self) -> Order:
        """Order of KV heads."""
        each = (place // self.copies for place in range(self.num_kv_heads))
        return tuple(head if head < self.kv_heads else None for head in each)

    @property
    def query_order(self) -> Order:
        """Order of query heads."""
        return tuple(head for place in range(self.num_kv_heads) for head in self._queries_of(place))

    @property
    def fused_order(self) -> Order:
        """Order of fused rows: a KV head's query heads, its key and its value, and then the next KV head's."""
        own, order = self.own_group_size, list[int | None]()
        for place, kv in enumerate(self.kv_order):
            queries = (None if head is None else head + head // own * 2 for head in self._queries_of(place))
            key = None if kv is None else kv * (own + 2) + own
            order += [*queries, key, None if key is None else key + 1]
        return tuple(order)

    def _queries_of(self, place: int) -> Iterator[int | None]:
        """The query heads of a place's KV head."""
        kv, first = self.kv_order[place], place % self.copies * self.group_size
        for index in range(first, first + self.group_size):
            yield kv * self.own_group_size + index if kv is not None and index < self.own_group_size else None


def as_they_are(query_heads: int, kv_heads: int) -> HeadSpread:
    """Heads in the checkpoint's own places."""
    return HeadSpread(query_heads, kv_heads, copies=1, groups=kv_heads)


def spread_heads(query_heads: int, kv_heads: int, shards: int) -> HeadSpread | None:
    """Place the heads on `shards` devices with the fewest query heads, then the fewest KV heads. Returns None if they
    divide as they are.

    Raises ParameterError if more than a quarter of the query heads would be zeros.
    """
    if kv_heads % shards == 0:
        return None
    spreads = [_copied(query_heads, kv_heads, groups, shards) for groups in range(kv_heads, 2 * kv_heads + 1)]
    best = min(spreads, key=lambda spread: (spread.num_heads, spread.num_kv_heads))
    if best.empty > _MOST_EMPTY:
        raise ParameterError(
            "mesh",
            f"{query_heads} query heads on {kv_heads} KV heads cannot be split over {shards} devices: {best.num_heads} "
            f"heads would be computed, {best.empty:.0%} of them empty; at most {_MOST_EMPTY:.0%} may be",
        )
    return best


def _copied(query_heads: int, kv_heads: int, groups: int, shards: int) -> HeadSpread:
    return HeadSpread(query_heads, kv_heads, shards // math.gcd(groups, shards), groups)
