"""KVCache: which blocks a sequence holds, and what the prefix cache keeps of them."""

from collections.abc import Iterable, Sequence

import numpy as np

from jaxinfer.engine.kv.block_pool import BlockPool
from jaxinfer.engine.kv.radix import Namespace, Node, RadixTree

_NEVER = 2**31 - 1


class BlockRefs:
    """A sequence's references to blocks of a KVCache, which alone changes them.

    namespace: its root of the radix tree.
    shard: the shard of its blocks, once it has any.
    blocks: block ids a KV group, in order; 0 behind a window.
    freed_by_window: blocks dropped behind a window, a count a KV group.
    duplicate_blocks: (group, block) of the tree's own block, referenced if ours is a copy of equal content.
    radix_node: the node of the radix tree that holds our newest committed block.
    committed: blocks of ours that the tree holds.
    """

    __slots__ = ("blocks", "committed", "duplicate_blocks", "freed_by_window", "namespace", "radix_node", "shard")

    def __init__(self, num_groups: int, namespace: Namespace = ("", "")):
        self.namespace = namespace
        self.shard = 0
        self.blocks: list[list[int]] = [[] for _ in range(num_groups)]
        self.freed_by_window = [0] * num_groups
        self.duplicate_blocks: list[tuple[int, int]] = []
        self.radix_node: Node | None = None
        self.committed = 0


class KVCache:
    """The pools of all KV groups and the radix tree over them.

    With prefix caching off the tree stays empty; everything else is the same.
    groups: window and number of blocks of each.
    max_cached_tokens: most tokens of a KV group that are kept though no sequence holds them.
    """

    def __init__(
        self,
        block_size: int,
        groups: Sequence[tuple[int | None, int]],
        *,
        enable_prefix_caching: bool,
        max_cached_tokens: int | None = None,
    ):
        self.block_size = block_size
        self.windows = [window for window, _ in groups]
        self.pools = [BlockPool(num_blocks) for _, num_blocks in groups]
        self.tree = RadixTree(self.pools, self.windows, self.block_size)
        self.caching = enable_prefix_caching
        self._max_cached = None if max_cached_tokens is None else max_cached_tokens // self.block_size
        self.has_windows = any(window is not None for window in self.windows)

    @property
    def blocks_total(self) -> int:
        return sum(pool.num_blocks - 1 for pool in self.pools)

    @property
    def blocks_in_use(self) -> int:
        return sum(pool.num_in_use for pool in self.pools)

    def cached_tokens(self, refs: BlockRefs, tokens: np.ndarray) -> int:
        """Return how many of `tokens` `match` would find now; takes nothing."""
        return len(self._cached_path(refs, tokens)) * self.block_size if self.caching else 0

    def match(self, refs: BlockRefs, tokens: np.ndarray) -> int:
        """Takes the longest cached prefix of `tokens`, int32, into `refs`, which hold nothing. Returns its length.

        At least the last token is left to compute.
        """
        if not self.caching:
            return 0
        refs.radix_node = self.tree.root(refs.namespace)
        self.tree.pin(refs.radix_node)
        path = self._cached_path(refs, tokens)
        if not path:
            return 0
        self.tree.use(path[-1])
        for group, pool in enumerate(self.pools):
            first = self.tree.first_needed(len(path), group)
            refs.blocks[group] = [0] * first + [node.blocks[group] for node in path[first:]]
            refs.freed_by_window[group] = first
            for block in refs.blocks[group][first:]:
                pool.retain(block)
        self.tree.pin(path[-1])
        self.tree.unpin(refs.radix_node)
        refs.radix_node = path[-1]
        refs.committed = len(path)
        return len(path) * self.block_size

    def enter(self, refs: BlockRefs, tokens: np.ndarray, longest: int) -> None:
        """Lets the tree keep blocks of a sequence that computes all of `tokens` itself, though some may be cached.

        It holds those twice while it runs, so it stays out where they leave too few for `longest` tokens.
        """
        if not self.caching:
            return
        cached = len(self._cached_path(refs, tokens))
        if not cached or self.available() - cached >= -(-longest // self.block_size):
            refs.radix_node = self.tree.root(refs.namespace)
            self.tree.pin(refs.radix_node)

    def available(self) -> int:
        """Blocks that the group with the fewest could hand out."""
        return min(pool.num_available for pool in self.pools)

    def missing(self, refs: BlockRefs, num_tokens: int, *, reserve: int = 0) -> int:
        """Return how many more blocks of a group must be available for `grow` to succeed."""
        need = -(-num_tokens // self.block_size) - len(refs.blocks[0]) + reserve
        return max(0, *(need - pool.num_available for pool in self.pools))

    def grow(self, refs: BlockRefs, num_tokens: int, *, reserve: int = 0) -> bool:
        """Adds blocks to `refs` for `num_tokens` positions, evicting where needed.

        False, and no change, where it cannot, or where fewer than `reserve` blocks of a group would be left.
        """
        need = -(-num_tokens // self.block_size) - len(refs.blocks[0])
        if need <= 0:
            return True
        taken = self._take(need, reserve)
        if taken is None:
            return False
        for own, new in zip(refs.blocks, taken, strict=True):
            own += new
        return True

    def grow_each(self, holders: Sequence[BlockRefs]) -> list[list[int]] | None:
        """One more block for each of `holders`: block ids a KV group; None, and no change, where there are too few."""
        taken = self._take(len(holders))
        if taken is None:
            return None
        for group, blocks in enumerate(taken):
            for refs, block in zip(holders, blocks, strict=True):
                refs.blocks[group].append(block)
        return taken

    def trim(self, refs: BlockRefs, position: int) -> int:
        """Drops blocks that no query at or after `position` can see; returns the position at which the next one goes.

        Only for positions that every step planned from now on starts at: a block dropped here may be
        written by another row of the next plan.
        """
        following = _NEVER
        for group, window in enumerate(self.windows):
            if window is None:
                continue
            behind = max(0, position - window + 1) // self.block_size
            for i in range(refs.freed_by_window[group], min(behind, len(refs.blocks[group]))):
                self._release(group, refs.blocks[group][i])
                refs.blocks[group][i] = 0
                refs.freed_by_window[group] = i + 1
            self._keep_at_most(group)
            following = min(following, (refs.freed_by_window[group] + 1) * self.block_size + window - 1)
        return following

    def commit(self, refs: BlockRefs, tokens: np.ndarray, num_computed: int) -> None:
        """Lets the tree keep the full blocks among the first `num_computed` positions of `tokens`.

        Their KV must come from collected steps, and their tokens must be known.
        """
        assert num_computed <= len(tokens)
        if refs.radix_node is None:  # nothing of it is kept
            return
        size = self.block_size
        blocks = range(refs.committed, num_computed // size)
        self.commit_next((refs, tokens[i * size : (i + 1) * size].tobytes()) for i in blocks)

    def commit_next(self, full: Iterable[tuple[BlockRefs, bytes]]) -> None:
        """Commit the next block of each sequence, the first that the tree was not offered, with the bytes of its
        tokens."""
        extend = self.tree.extend
        for refs, key in full:
            before = refs.radix_node
            if before is None:
                continue
            own = tuple([blocks[refs.committed] for blocks in refs.blocks])
            node = refs.radix_node = extend(before, key, own)
            refs.committed += 1
            if node.blocks is not own:
                self._hold_duplicates(refs, node, own)

    def _hold_duplicates(self, refs: BlockRefs, node: Node, own: Iterable[int]) -> None:
        """Reference the tree's own block as well if it has one of equal content, so that a block added below it never
        loses its parents."""
        for group, block in enumerate(own):
            if self.windows[group] is None and node.blocks[group] != block:
                self.pools[group].retain(node.blocks[group])
                refs.duplicate_blocks.append((group, node.blocks[group]))

    def all_committed(self, refs: BlockRefs, num_computed: int) -> bool:
        """True where the tree was offered every full block among the first `num_computed` positions.

        Only then may they be forked: a block that two sequences hold and that enters the tree later would be held by
        one of them without the blocks above it.
        """
        return refs.radix_node is None or refs.committed == num_computed // self.block_size

    def fork(self, parent: BlockRefs) -> BlockRefs:
        """References to every block of `parent`, the partial last one included."""
        child = BlockRefs(len(self.pools), parent.namespace)
        child.shard = parent.shard
        child.blocks = [list(blocks) for blocks in parent.blocks]
        child.freed_by_window = list(parent.freed_by_window)
        child.duplicate_blocks = list(parent.duplicate_blocks)
        child.committed = parent.committed
        child.radix_node = parent.radix_node
        for group, blocks in enumerate(child.blocks):
            for block in blocks:
                if block:
                    self.pools[group].retain(block)
        for group, block in child.duplicate_blocks:
            self.pools[group].retain(block)
        if child.radix_node is not None:
            self.tree.pin(child.radix_node)
        return child

    def own_last_block(self, refs: BlockRefs) -> list[tuple[int, int]] | None:
        """Swaps the shared last block for a fresh one: (source, destination) a group, or None if there is none free."""
        taken = self._take(1)
        if taken is None:
            return None
        copies = []
        for group, (fresh,) in enumerate(taken):
            shared = refs.blocks[group][-1]
            refs.blocks[group][-1] = fresh
            copies.append((shared, fresh))
            self._release(group, shared)
            self._keep_at_most(group)
        return copies

    def release(self, refs: BlockRefs) -> None:
        """Drops everything that `refs` hold. The tree keeps what was committed."""
        if refs.radix_node is not None:
            self.tree.use(refs.radix_node)
        for group, blocks in enumerate(refs.blocks):
            for block in blocks:
                if block:
                    self._release(group, block)
            refs.blocks[group] = []
            refs.freed_by_window[group] = 0
        for group, block in refs.duplicate_blocks:
            self._release(group, block)
        refs.duplicate_blocks = []
        if refs.radix_node is not None:
            self.tree.unpin(refs.radix_node)
            refs.radix_node = None
        refs.committed = 0
        for group in range(len(self.pools)):
            self._keep_at_most(group)

    def forget_all(self) -> None:
        """Empties the prefix cache; no sequence may hold blocks."""
        for group, pool in enumerate(self.pools):
            self.tree.evict(group, pool.num_evictable)

    def _cached_path(self, refs: BlockRefs, tokens: np.ndarray) -> list[Node]:
        data, width = tokens.tobytes(), tokens.itemsize * self.block_size
        whole = (len(tokens) - 1) // self.block_size
        return self.tree.match(refs.namespace, (data[i * width : (i + 1) * width] for i in range(whole)))

    def _take(self, count: int, reserve: int = 0) -> list[list[int]] | None:
        """`count` blocks of each group, evicted where needed; None where fewer than `reserve` would be left of one."""
        if any(pool.num_available < count + reserve for pool in self.pools):
            return None
        taken = []
        for group, pool in enumerate(self.pools):
            if pool.num_free < count:
                self.tree.evict(group, count - pool.num_free)
            taken.append(pool.take(count))
        return taken

    def _keep_at_most(self, group: int) -> None:
        """Evicts what is above the cap. Not while a path is half released: its leaf could not go."""
        if self._max_cached is not None:
            excess = self.pools[group].num_evictable - self._max_cached
            if excess > 0:
                self.tree.evict(group, excess)

    def _release(self, group: int, block: int) -> None:
        if self.pools[group].release(block):
            self.tree.became_evictable(group, block)
