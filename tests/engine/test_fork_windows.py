"""A fork's partial block that enters the radix tree beside a block of another request."""

from dataclasses import replace

import numpy as np

from jaxinfer.engine.kv.manager import KVCache
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.step.shapes import KVGroup
from jaxinfer.sampling import SamplingParams
from tests.engine.small import small_shapes

PROMPT = [1, 2, 3, 4, 5, 6]
FULL, WINDOWED = 0, 1


def make_sequence(name: str, arrival: int) -> Sequence:
    return Sequence(
        name,
        np.array(PROMPT, np.int32),
        SamplingParams(),
        limit=20,
        seed=1,
        stop_ids=frozenset(),
        arrival=arrival,
        num_groups=2,
    )


def test_a_leaf_goes_though_a_waiting_sequence_holds_its_windowed_block() -> None:
    """It once ended the engine: the block was to be freed while the sequence held it."""
    shapes = replace(small_shapes(block_size=2), groups=(KVGroup(None, 20), KVGroup(4, 20)))
    kv = KVCache(shapes, enable_prefix_caching=True)
    first, parent = make_sequence("first", 0), make_sequence("second", 1)
    assert kv.match(first) == 0
    assert kv.grow(first, 6)
    kv.commit(first, 6)
    kv.release(first)
    kv.tree.evict(WINDOWED, 3)

    assert kv.match(parent) == 0, "without its windowed blocks nothing can be reused"
    assert kv.grow(parent, 5)
    kv.commit(parent, 4)
    child = parent.child(1)
    kv.fork(parent, child)
    kv.commit(parent, 6)
    kv.release(parent)

    kv.tree.evict(FULL, kv.pools[FULL].num_evictable)
    assert kv.pools[FULL].num_evictable == 0
    assert kv.own_last_block(child) is not None
    kv.release(child)
    for pool in kv.pools:
        assert pool.num_in_use == 0
        assert pool.num_free + pool.num_evictable == pool.num_blocks - 1
