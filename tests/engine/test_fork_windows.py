"""A fork's partial block that enters the radix tree beside a block of another request."""

import numpy as np

from jaxinfer.engine.kv.manager import BlockRefs, KVCache

PROMPT = np.array([1, 2, 3, 4, 5, 6], np.int32)
FULL, WINDOWED = 0, 1


def test_a_leaf_goes_though_a_waiting_sequence_holds_its_windowed_block() -> None:
    """It once ended the engine: the block was to be freed while the sequence held it."""
    kv = KVCache(2, ((None, 20), (4, 20)), enable_prefix_caching=True)
    first, parent = BlockRefs(2), BlockRefs(2)
    assert kv.match(first, PROMPT) == 0
    assert kv.grow(first, 6)
    kv.commit(first, PROMPT, 6)
    kv.release(first)
    kv.tree.evict(WINDOWED, 3)

    assert kv.match(parent, PROMPT) == 0, "without its windowed blocks nothing can be reused"
    assert kv.grow(parent, 5)
    kv.commit(parent, PROMPT, 4)
    child = kv.fork(parent)
    kv.commit(parent, PROMPT, 6)
    kv.release(parent)

    kv.tree.evict(FULL, kv.pools[FULL].num_evictable)
    assert kv.pools[FULL].num_evictable == 0
    assert kv.own_last_block(child) is not None
    kv.release(child)
    for pool in kv.pools:
        assert pool.num_in_use == 0
        assert pool.num_free + pool.num_evictable == pool.num_blocks - 1
