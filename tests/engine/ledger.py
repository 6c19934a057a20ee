"""A model of the block rules: counts holders from what live sequences say they hold, and compares."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.kv.manager import KVCache
from jaxinfer.engine.scheduler.queue import WaitingQueue
from jaxinfer.engine.scheduler.rank_order import RankOrder
from jaxinfer.engine.scheduler.share import KeyShare, RoundRobin
from jaxinfer.engine.sequence import Sequence, Status


def live_sequences(core: EngineCore, name: str | None = None) -> list[Sequence]:
    """Every sequence that has not ended, or those of one request."""
    groups = core._sequences.values() if name is None else [core._sequences.get(name, [])]
    return [sequence for sequences in groups for sequence in sequences if not sequence.finished]


def live_names(core: EngineCore) -> list[str]:
    """Ids of the requests that have not ended, sorted."""
    return sorted({sequence.request_id for sequence in live_sequences(core)})


def check_blocks(core: EngineCore) -> None:
    """Asserts the invariant of blocks (jaxinfer/DESIGN.md) and who holds what, a shard and a group at a time."""
    for shard, kv in enumerate(core.scheduler.state.kv_shards):
        _check_shard(kv, [sequence for sequence in live_sequences(core) if sequence.kv.shard == shard])


def _check_shard(kv: KVCache, sequences: list[Sequence]) -> None:
    for group, pool in enumerate(kv.pools):
        held: Counter[int] = Counter()
        owners: Counter[int] = Counter()
        for sequence in sequences:
            blocks = [block for block in sequence.kv.blocks[group] if block]
            assert len(blocks) == len(set(blocks)), "a block twice in one table"
            held.update(blocks)
            owners.update(blocks)
            held.update(block for other, block in sequence.kv.duplicate_blocks if other == group)
        cached = kv.tree.blocks(group)
        keys = {len(node.key) for node in kv.tree._nodes[group].values()}
        assert keys <= {8 + 4 * kv.block_size}, "a key that is no whole block"
        assert len(cached) == len(set(cached)), "a block twice in the tree"
        free = pool._free
        assert len(free) == len(set(free)), "a block freed twice"
        assert 0 not in free
        assert 0 not in held
        assert 0 not in cached
        assert not set(free) & (set(held) | set(cached)), "a free block is in use"
        for block in range(1, pool.num_blocks):
            assert pool.references(block) == held[block]
            assert bool(pool._cached[block]) == (block in cached)
        evictable = [block for block in cached if not held[block]]
        assert pool.num_evictable == len(evictable)
        assert pool.num_free + pool.num_evictable + pool.num_in_use == pool.num_blocks - 1
        assert pool.num_in_use == len(held)
        shared = {block for block, count in owners.items() if count > 1}
        assert all(block in cached or _forked(sequences, group, block) for block in shared), "a block in two places"


def check_slots(core: EngineCore) -> None:
    """Asserts that slots and statuses agree."""
    table = core.scheduler.state.table
    placed = [sequence for sequence in live_sequences(core) if sequence.slot >= 0]
    assert len({sequence.slot for sequence in placed}) == len(placed)
    for sequence in placed:
        assert table.sequences[sequence.slot] is sequence
        assert sequence.slot // core.runner.shapes.max_num_seqs == sequence.kv.shard
        assert sequence.status in (Status.RUNNING, Status.DRAINING)
        # (a parent's goal leaves its last token out)
        assert table.computed[sequence.slot] <= table.total[sequence.slot]
        assert table.total[sequence.slot] <= sequence.limit
        assert table.capacity[sequence.slot] == len(sequence.kv.blocks[0]) * core.runner.shapes.block_size
    assert table.num_taken == len(placed)


def queue_entries(queue: WaitingQueue) -> int:
    """Entries that a queue keeps, those of sequences that are gone included."""
    line = queue._line
    levels = [] if isinstance(line, RankOrder) else line._levels.values()
    orders = [line] if isinstance(line, RankOrder) else [order for level in levels for order in _orders(level)]
    return len(queue._isolated) + sum(len(order._heap) + len(order._deferred) for order in orders)


def _orders(rounds: RoundRobin) -> Iterator[RankOrder]:
    """Those of all tenants that take turns."""
    for share in rounds.parts.values():
        if isinstance(share, KeyShare):
            yield from _orders(share.users)
        else:
            yield share.queue


def check_options(core: EngineCore, partial: int | None, kept: int | None) -> None:
    """Asserts that at most `partial` prompts are half computed, and `kept` tokens kept that nobody holds."""
    table = core.scheduler.state.table
    half = [
        r
        for r in core.scheduler.state.running
        if table.total[r.slot] - table.computed[r.slot] > table.samples[r.slot] and not table.foreseen[r.slot]
    ]
    assert partial is None or len(half) <= partial
    shards, size = core.scheduler.state.kv_shards, core.runner.shapes.block_size
    for group in range(len(shards[0].pools)):
        assert kept is None or sum(kv.pools[group].num_evictable for kv in shards) * size <= kept


def free(core: EngineCore, group: int) -> np.ndarray:
    """bool [blocks]: those that nobody has, sequence or tree, and the scratch block."""
    pool = core.scheduler.state.kv.pools[group]
    found = np.zeros(pool.num_blocks, bool)
    found[[0, *pool._free]] = True
    return found


def unread(core: EngineCore, group: int, shard: int = 0) -> np.ndarray:
    """bool [blocks, block size]: positions of a shard's blocks that no step after the one just planned reads
    before it writes them.

    That is every block that is free, the scratch block, and in blocks in use what lies behind the last position or
    before the window of every holder. A block that the tree has, or may be offered yet, is read whole by others.
    """
    kv, size = core.scheduler.state.kv_shards[shard], core.runner.shapes.block_size
    pool = kv.pools[group]
    begin, end = np.full(pool.num_blocks, size), np.zeros(pool.num_blocks, np.int32)
    for sequence in [sequence for sequence in live_sequences(core) if sequence.kv.shard == shard]:
        first, computed = _first_seen(core, sequence, group), _computed(core, sequence)
        for i, block in enumerate(sequence.kv.blocks[group]):
            if block:
                may_enter_tree = sequence.kv.radix_node is not None and i >= sequence.kv.committed
                begin[block] = min(begin[block], 0 if may_enter_tree else first - i * size)
                end[block] = max(end[block], min(size, computed - i * size))
    cached = kv.tree.blocks(group)
    begin[cached], end[cached] = 0, size
    place = np.arange(size)
    return (place < begin[:, None]) | (place >= end[:, None])


def _computed(core: EngineCore, sequence: Sequence) -> int:
    """Positions that planned steps compute, at most."""
    return int(core.scheduler.state.table.computed[sequence.slot]) if sequence.slot >= 0 else sequence.fork_computed


def _first_seen(core: EngineCore, sequence: Sequence, group: int) -> int:
    """The first position that rows planned from now on see, or an earlier one."""
    window, table = core.runner.shapes.groups[group].window, core.scheduler.state.table
    if window is None:
        return 0
    # A step of several tokens a row may compute less than was planned.
    known = sequence.slot < 0 or core.runner.shapes.row_tokens == 1
    following = _computed(core, sequence) if known else int(table.collected[sequence.slot])
    return max(0, following - window + 1)


def _forked(sequences: list[Sequence], group: int, block: int) -> bool:
    holders = [sequence for sequence in sequences if block in sequence.kv.blocks[group]]
    return len({sequence.request_id for sequence in holders}) == 1
