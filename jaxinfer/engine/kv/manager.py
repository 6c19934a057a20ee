"""KVCache: which blocks a sequence holds, and what the prefix cache keeps of them."""

from collections import abc

from jaxinfer.engine.kv.block_pool import BlockPool
from jaxinfer.engine.kv.radix import Node, RadixTree
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.step.shapes import EngineShapes

_NEVER = 2**31 - 1


class KVCache:
    """The pools of all KV groups and the radix tree over them.

    With prefix caching off the tree stays empty; everything else is the same.
    max_cached_tokens: most tokens of a KV group that are kept though no sequence holds them.
    """

    def __init__(self, shapes: EngineShapes, *, enable_prefix_caching: bool, max_cached_tokens: int | None = None):
        self.block_size = shapes.block_size
        self.windows = [group.window for group in shapes.groups]
        self.pools = [BlockPool(group.num_blocks) for group in shapes.groups]
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

    def cached_tokens(self, sequence: Sequence) -> int:
        """Prompt tokens that `match` would find now; takes nothing."""
        if not self.caching or sequence.owes_prompt_logprobs:
            return 0
        return len(self._cached_path(sequence)) * self.block_size

    def match(self, sequence: Sequence) -> int:
        """Takes the longest cached prefix into `sequence`, which holds nothing. Returns its tokens.

        At least the last token is left to compute. A prompt whose log-probabilities are still owed is computed
        whole, since cached blocks hold no logits, and stays out of the tree: it would hold most of its blocks twice.
        """
        if not self.caching or sequence.owes_prompt_logprobs:
            return 0
        sequence.radix_node = self.tree.root(sequence.namespace)
        sequence.committed = 0
        self.tree.pin(sequence.radix_node)
        path = self._cached_path(sequence)
        if not path:
            return 0
        self.tree.use(path[-1])
        for group, pool in enumerate(self.pools):
            first = self.tree.first_needed(len(path), group)
            sequence.blocks[group] = [0] * first + [node.blocks[group] for node in path[first:]]
            sequence.freed_by_window[group] = first
            for block in sequence.blocks[group][first:]:
                pool.retain(block)
        self.tree.pin(path[-1])
        self.tree.unpin(sequence.radix_node)
        sequence.radix_node = path[-1]
        sequence.committed = len(path)
        return len(path) * self.block_size

    def missing(self, sequence: Sequence, num_tokens: int, *, reserve: int = 0) -> int:
        """How many more blocks of a group must be available for `grow` to succeed."""
        need = -(-num_tokens // self.block_size) - len(sequence.blocks[0]) + reserve
        return max(0, *(need - pool.num_available for pool in self.pools))

    def grow(self, sequence: Sequence, num_tokens: int, *, reserve: int = 0) -> bool:
        """Gives `sequence` blocks for `num_tokens` positions, evicting where needed.

        False, and no change, where it cannot, or where fewer than `reserve` blocks of a group would be left.
        """
        need = -(-num_tokens // self.block_size) - len(sequence.blocks[0])
        if need <= 0:
            return True
        for pool in self.pools:
            if pool.num_available < need + reserve:
                return False
        for group, pool in enumerate(self.pools):
            if pool.num_free < need:
                self.tree.evict(group, need - pool.num_free)
            sequence.blocks[group] += pool.take(need)
        return True

    def grow_each(self, sequences: abc.Sequence[Sequence]) -> list[list[int]] | None:
        """One more block for each sequence: block ids a KV group; None, and no change, where there are too few."""
        count = len(sequences)
        if any(pool.num_available < count for pool in self.pools):
            return None
        taken = []
        for group, pool in enumerate(self.pools):
            if pool.num_free < count:
                self.tree.evict(group, count - pool.num_free)
            blocks = pool.take(count)
            for sequence, block in zip(sequences, blocks, strict=True):
                sequence.blocks[group].append(block)
            taken.append(blocks)
        return taken

    def trim(self, sequence: Sequence, position: int) -> int:
        """Drops blocks that no query at or after `position` can see; returns the position at which the next one goes.

        Only for positions that every step planned from now on starts at: a block dropped here may be
        written by another row of the next plan.
        """
        following = _NEVER
        for group, window in enumerate(self.windows):
            if window is None:
                continue
            behind = max(0, position - window + 1) // self.block_size
            for i in range(sequence.freed_by_window[group], min(behind, len(sequence.blocks[group]))):
                self._release(group, sequence.blocks[group][i])
                sequence.blocks[group][i] = 0
                sequence.freed_by_window[group] = i + 1
            self._keep_at_most(group)
            following = min(following, (sequence.freed_by_window[group] + 1) * self.block_size + window - 1)
        return following

    def commit(self, sequence: Sequence, num_computed: int) -> None:
        """Lets the tree keep the full blocks among the first `num_computed` positions.

        Their KV must come from collected steps, and their tokens must be known.
        """
        if sequence.radix_node is None:
            return
        size, tokens = self.block_size, sequence.tokens
        for i in range(sequence.committed, num_computed // size):
            key = tokens[i * size : (i + 1) * size].tobytes()
            own = [blocks[i] for blocks in sequence.blocks]
            node = self.tree.extend(sequence.radix_node, key, own)
            for group, block in enumerate(own):
                # The tree has a block of equal content already: hold it too, so that what we add
                # below it is never without its parents.
                if self.windows[group] is None and node.blocks[group] != block:
                    self.pools[group].retain(node.blocks[group])
                    sequence.duplicate_blocks.append((group, node.blocks[group]))
            self.tree.move_pin(sequence.radix_node, node)
            sequence.radix_node = node
            sequence.committed = i + 1

    def all_committed(self, parent: Sequence) -> bool:
        """True where the tree was offered every full block of a parent's prompt.

        Only then may it fork: a block that two sequences hold and that enters the tree later would be held by one
        of them without the blocks above it.
        """
        return parent.radix_node is None or parent.committed == (parent.prompt_len - 1) // self.block_size

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Lets `child` hold every block of `parent`, the partial last one included."""
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

    def own_last_block(self, sequence: Sequence) -> list[tuple[int, int]] | None:
        """Swaps the shared last block for a fresh one: (source, destination) a group, or None if there is none free."""
        if any(not pool.num_available for pool in self.pools):
            return None
        copies = []
        for group, pool in enumerate(self.pools):
            if not pool.num_free:
                self.tree.evict(group, 1)
            (fresh,) = pool.take(1)
            shared = sequence.blocks[group][-1]
            sequence.blocks[group][-1] = fresh
            copies.append((shared, fresh))
            self._release(group, shared)
            self._keep_at_most(group)
        return copies

    def release(self, sequence: Sequence) -> None:
        """Drops everything that `sequence` holds. The tree keeps what was committed."""
        if sequence.radix_node is not None:
            self.tree.use(sequence.radix_node)
        for group, blocks in enumerate(sequence.blocks):
            for block in blocks:
                if block:
                    self._release(group, block)
            sequence.blocks[group] = []
            sequence.freed_by_window[group] = 0
        for group, block in sequence.duplicate_blocks:
            self._release(group, block)
        sequence.duplicate_blocks = []
        if sequence.radix_node is not None:
            self.tree.unpin(sequence.radix_node)
            sequence.radix_node = None
        sequence.committed = 0
        for group in range(len(self.pools)):
            self._keep_at_most(group)

    def forget_all(self) -> None:
        """Empties the prefix cache; no sequence may hold blocks."""
        for group, pool in enumerate(self.pools):
            self.tree.evict(group, pool.num_evictable)

    def _cached_path(self, sequence: Sequence) -> list[Node]:
        keys = self._keys(sequence, (sequence.num_known - 1) // self.block_size)
        return self.tree.match(sequence.namespace, keys)

    def _keep_at_most(self, group: int) -> None:
        """Evicts what is above the cap. Not while a path is half released: its leaf could not go."""
        if self._max_cached is not None:
            excess = self.pools[group].num_evictable - self._max_cached
            if excess > 0:
                self.tree.evict(group, excess)

    def _keys(self, sequence: Sequence, count: int) -> abc.Iterator[bytes]:
        data, width = sequence.tokens.tobytes(), sequence.tokens.itemsize * self.block_size
        return (data[i * width : (i + 1) * width] for i in range(count))

    def _release(self, group: int, block: int) -> None:
        if self.pools[group].release(block):
            self.tree.became_evictable(group, block)
