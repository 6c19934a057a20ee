"""The block pool and the radix tree."""

import random
from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.kv.block_pool import BlockPool
from jaxinfer.engine.kv.manager import BlockRefs, KVCache
from jaxinfer.engine.kv.radix import Node, RadixTree

MINE, OTHER = ("", "mine"), ("", "other")


def test_blocks_go_round() -> None:
    pool = BlockPool(6)
    blocks = pool.take(5)
    assert sorted(blocks) == [1, 2, 3, 4, 5]  # never the scratch block
    assert (pool.num_free, pool.num_in_use, pool.num_evictable) == (0, 5, 0)
    with pytest.raises(RuntimeError, match="1 blocks asked for, 0 are free"):
        pool.take(1)
    pool.retain(blocks[0])
    assert not pool.release(blocks[0])
    assert pool.num_free == 0
    pool.release(blocks[0])
    assert pool.take(1) == [blocks[0]]
    assert pool.take(0) == []


def test_misuse_is_an_error() -> None:
    pool = BlockPool(4)
    (block,) = pool.take(1)
    pool.release(block)
    with pytest.raises(RuntimeError, match="freed twice"):
        pool.release(block)
    with pytest.raises(RuntimeError, match="cannot be shared"):
        pool.retain(block)
    with pytest.raises(RuntimeError, match="cannot enter"):
        pool.cache(block)
    with pytest.raises(RuntimeError, match="cannot be evicted"):
        pool.evict(block)
    (block,) = pool.take(1)
    pool.cache(block)
    with pytest.raises(RuntimeError, match="cannot enter"):
        pool.cache(block)
    with pytest.raises(RuntimeError, match="cannot be evicted"):
        pool.evict(block)  # it is in use
    assert pool.release(block)
    assert (pool.num_evictable, pool.num_available, pool.num_in_use) == (1, 3, 0)
    with pytest.raises(RuntimeError, match="freed twice"):
        pool.release(block)
    pool.retain(block)
    assert (pool.num_evictable, pool.num_in_use) == (0, 1)


class Cache:
    """A tree whose blocks are released as soon as they are in it."""

    def __init__(self, windows: tuple[int | None, ...] = (None,), blocks: int = 30, size: int = 4):
        self.pools = [BlockPool(blocks) for _ in windows]
        self.tree = RadixTree(self.pools, windows, size)

    def put(self, text: str, namespace=MINE, *, hold: bool = False) -> list[Node]:
        """A path of one block a letter."""
        node = self.tree.root(namespace)
        self.tree.pin(node)
        path = []
        for letter in text:
            own = tuple(pool.take(1)[0] for pool in self.pools)
            child = self.tree.extend(node, letter.encode(), own)
            for group, block in enumerate(own):
                if not (hold and child.blocks[group] == block) and self.pools[group].release(block):
                    self.tree.became_evictable(group, block)
            node = child
            path.append(child)
        self.tree.use(node)
        self.tree.unpin(node)
        return path

    def found(self, text: str, namespace=MINE) -> str:
        path = self.tree.match(namespace, [letter.encode() for letter in text])
        return b"".join(node.key[len(node.name) :] for node in path if isinstance(node.key, bytes)).decode()


def test_the_longest_prefix_is_found() -> None:
    cache = Cache()
    cache.put("abc")
    cache.put("abxy")
    assert cache.found("abc") == "abc"
    assert cache.found("abcd") == "abc"
    assert cache.found("abxz") == "abx"
    assert cache.found("b") == ""
    assert cache.found("") == ""
    assert cache.pools[0].num_evictable == 5


def test_nothing_is_shared_between_namespaces() -> None:
    cache = Cache()
    cache.put("abc")
    assert cache.found("abc", OTHER) == ""
    cache.put("ab", OTHER)
    assert cache.found("abc", OTHER) == "ab"
    assert cache.pools[0].num_evictable == 5  # two namespaces, two copies


def test_the_least_recently_used_leaf_goes_first() -> None:
    cache = Cache()
    cache.put("abc")
    cache.put("xyz")
    path = cache.put("pq")
    cache.tree.use(cache.tree.match(MINE, [b"a", b"b", b"c"])[-1])
    cache.tree.evict(0, 1)
    assert (cache.found("abc"), cache.found("xyz"), cache.found("pq")) == ("abc", "xy", "pq")
    cache.tree.evict(0, 3)
    assert (cache.found("abc"), cache.found("xyz"), cache.found("pq")) == ("abc", "", "p")
    assert path[0].blocks != [0]
    cache.tree.evict(0, 4)
    assert cache.pools[0].num_evictable == 0
    assert not cache.tree._roots  # nothing is left behind


def test_a_block_in_use_holds_its_parents() -> None:
    cache = Cache()
    path = cache.put("abc", hold=True)
    cache.put("abcdef")
    assert cache.pools[0].num_evictable == 3
    cache.tree.evict(0, 3)
    assert cache.found("abcdef") == "abc"
    for node in path:
        cache.pools[0].release(node.blocks[0])
        cache.tree.became_evictable(0, node.blocks[0])
    cache.tree.evict(0, 1)
    assert cache.found("abc") == "ab"


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("window", [1, 3, 4, 5, 17])
def test_first_needed_is_the_block_of_the_oldest_token_that_is_seen(window, size) -> None:
    tree = RadixTree([BlockPool(4)], [window], size)
    for length in range(12):
        position = length * size
        seen = [p for p in range(position + 1) if p > position - window]
        assert tree.first_needed(length, 0) == min(seen) // size


def test_a_windowed_group_needs_only_the_end_of_a_path() -> None:
    cache = Cache(windows=(None, 6))
    path = cache.put("abcdef")
    assert cache.found("abcdef") == "abcdef"
    cache.tree.evict(1, 3)  # a window's oldest blocks go first, and the path stays
    assert [bool(node.blocks[1]) for node in path] == [False] * 3 + [True] * 3
    assert cache.found("abcdef") == "abcdef"
    assert cache.found("abcd") == ""  # the window before its end is gone
    cache.tree.evict(1, 1)
    assert cache.found("abcdef") == "abcdef"  # 6 tokens, of which the next is one, reach two blocks back
    cache.tree.evict(1, 1)
    assert cache.found("abcdef") == ""
    assert cache.pools[0].num_evictable == 6


def test_evicting_a_full_block_takes_the_windowed_one_with_it() -> None:
    cache = Cache(windows=(None, 6))
    cache.put("abc")
    cache.tree.evict(0, 1)
    assert cache.found("abc") == "ab"
    assert cache.pools[1].num_evictable == 2


def test_blocks_are_filled_in_where_they_were_evicted() -> None:
    cache = Cache(windows=(None, 6))
    cache.put("abcdef")
    cache.tree.evict(1, 5)
    cache.put("abcdef")
    assert cache.found("abcdef") == "abcdef"
    assert cache.pools[0].num_evictable == cache.pools[1].num_evictable == 6


def test_a_dictionary_agrees_on_random_paths() -> None:
    """Without eviction the tree holds exactly the prefixes that were put in."""
    rng = random.Random(1)
    cache = Cache(blocks=2000)
    known = set()
    for _ in range(200):
        text = "".join(rng.choice("abc") for _ in range(rng.randrange(1, 8)))
        cache.put(text)
        known |= {text[:i] for i in range(1, len(text) + 1)}
        probe = "".join(rng.choice("abc") for _ in range(8))
        assert cache.found(probe) == max((p for p in known if probe.startswith(p)), key=len, default="")
    assert cache.pools[0].num_evictable == len(known)


def test_where_nothing_is_kept_tokens_are_not_read_again() -> None:
    """With each block of a long context they would take longer."""

    class Unread(np.ndarray):
        def __getitem__(self, key: Any) -> Any:
            raise AssertionError("tokens were read")

    kv, refs, tokens = KVCache(4, [(None, 10)], enable_prefix_caching=False), BlockRefs(1), np.zeros(9, np.int32)
    assert not kv.match(refs, tokens)
    assert kv.grow(refs, 9)
    for computed in (4, 9):
        kv.commit(refs, tokens.view(Unread), computed)
    assert not kv.tree.blocks(0)
