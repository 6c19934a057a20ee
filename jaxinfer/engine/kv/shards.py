"""KVShards: a KVCache for each shard. A sequence's blocks, and the prefixes that it can reuse, are its shard's."""

from collections.abc import Iterable, Sequence

import numpy as np

from jaxinfer.engine.kv.block_pool import BlockPool
from jaxinfer.engine.kv.manager import BlockRefs, KVCache


class KVShards:
    """KV caches of all shards behind the interface of one; a call goes to the shard of the references. Block ids are a
    shard's own."""

    def __init__(self, shards: Sequence[KVCache]):
        self.shards, first = shards, shards[0]
        self.caching, self.has_windows, self.block_size = first.caching, first.has_windows, first.block_size

    @property
    def pools(self) -> list[BlockPool]:
        """Block pools of all shards."""
        return [pool for kv in self.shards for pool in kv.pools]

    @property
    def blocks_total(self) -> int:
        return sum(kv.blocks_total for kv in self.shards)

    @property
    def blocks_in_use(self) -> int:
        return sum(kv.blocks_in_use for kv in self.shards)

    def cached_tokens(self, refs: BlockRefs, tokens: np.ndarray) -> int:
        """Return how many of `tokens` are cached in the shard that has most of them; takes nothing."""
        return max(kv.cached_tokens(refs, tokens) for kv in self.shards)

    def match(self, refs: BlockRefs, tokens: np.ndarray) -> int:
        return self._of(refs).match(refs, tokens)

    def enter(self, refs: BlockRefs, tokens: np.ndarray, longest: int) -> None:
        """`KVCache.enter` in the shard that `refs` name."""
        self._of(refs).enter(refs, tokens, longest)

    def missing(self, refs: BlockRefs, num_tokens: int, *, reserve: int = 0) -> int:
        return self._of(refs).missing(refs, num_tokens, reserve=reserve)

    def grow(self, refs: BlockRefs, num_tokens: int, *, reserve: int = 0) -> bool:
        return self._of(refs).grow(refs, num_tokens, reserve=reserve)

    def grow_each(self, holders: Sequence[BlockRefs]) -> list[list[int]] | None:
        """Grow each sequence by a block as `KVCache.grow_each` does, for sequences of any shards."""
        parts = [[i for i, refs in enumerate(holders) if refs.shard == shard] for shard in range(len(self.shards))]
        if any(len(part) > kv.available() for part, kv in zip(parts, self.shards, strict=True)):
            return None
        taken = [[0] * len(holders) for _ in self.shards[0].pools]
        for part, kv in zip(parts, self.shards, strict=True):
            for group, blocks in enumerate(kv.grow_each([holders[i] for i in part]) or ()):
                for i, block in zip(part, blocks, strict=True):
                    taken[group][i] = block
        return taken

    def trim(self, refs: BlockRefs, position: int) -> int:
        return self._of(refs).trim(refs, position)

    def commit(self, refs: BlockRefs, tokens: np.ndarray, num_computed: int) -> None:
        self._of(refs).commit(refs, tokens, num_computed)

    def commit_next(self, full: Iterable[tuple[BlockRefs, bytes]]) -> None:
        for refs, key in full:
            self._of(refs).commit_next([(refs, key)])

    def all_committed(self, refs: BlockRefs, num_computed: int) -> bool:
        return self._of(refs).all_committed(refs, num_computed)

    def fork(self, parent: BlockRefs) -> BlockRefs:
        return self._of(parent).fork(parent)

    def own_last_block(self, refs: BlockRefs) -> list[tuple[int, int]] | None:
        return self._of(refs).own_last_block(refs)

    def release(self, refs: BlockRefs) -> None:
        self._of(refs).release(refs)

    def forget_all(self) -> None:
        for kv in self.shards:
            kv.forget_all()

    def _of(self, refs: BlockRefs) -> KVCache:
        return self.shards[refs.shard]
