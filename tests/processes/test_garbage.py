"""Full collections of garbage stay short while many objects live, and nothing is left uncollected for good."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from jaxinfer.processes.garbage import LONG_SECONDS, ShortCollections, forget_garbage, short_collections


class Node:
    """A piece of garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def little_frozen() -> Iterator[None]:
    """Freeze what lives, as in a process that is ready."""
    forget_garbage()
    yield
    gc.unfreeze()


class Clock:
    """Two readings of it lie so many seconds apart."""

    def __init__(self, seconds: float):
        self.now, self.seconds = 0.0, seconds

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


def test_what_survives_a_long_collection_is_left_out():
    node = Node()
    with ShortCollections(Clock(2 * LONG_SECONDS)) as collections:
        gc.collect()
        assert collections.left_out
        assert all(tracked is not node for tracked in gc.get_objects())
        gone = weakref.ref(node)
        del node
        gc.collect()
        assert gone() is not None  # it was left out
        collections.collect_all()
        assert gone() is None
        assert not collections.left_out
    count = len(gc.callbacks)
    gc.collect()
    assert count == len(gc.callbacks)


def test_a_short_one_or_one_of_the_young_leaves_nothing_out():
    node = Node()
    with ShortCollections(Clock(LONG_SECONDS / 2)) as collections:
        gc.collect()
        assert not collections.left_out
    with ShortCollections(Clock(2 * LONG_SECONDS)) as collections:
        gc.collect(1)
        assert not collections.left_out
    assert any(tracked is node for tracked in gc.get_objects())


async def test_what_was_left_out_is_collected_once_idle(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jaxinfer.processes.garbage.LONG_SECONDS", 0.0)
    idle = False
    async with short_collections(lambda: idle, look_seconds=0.01):
        node = Node()
        gone = weakref.ref(node)
        gc.collect()
        del node
        gc.collect()
        await asyncio.sleep(0.05)
        assert gone() is not None
        idle = True
        async with asyncio.timeout(5):
            while gone() is not None:
                await asyncio.sleep(0.01)


async def test_what_was_left_out_is_collected_on_a_server_that_is_never_idle(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jaxinfer.processes.garbage.LONG_SECONDS", 0.0)
    alive = gc.get_freeze_count()
    async with short_collections(lambda: False, look_seconds=0.01):
        nodes = [Node() for _ in range(alive // 2)]
        gone = weakref.ref(nodes[0])
        gc.collect()
        del nodes
        await asyncio.sleep(0.05)
        assert gone() is not None  # what was left out is no more than half of what lives
        more = [Node() for _ in range(2 * alive)]
        gc.collect()
        del more
        async with asyncio.timeout(30):
            while gone() is not None:
                await asyncio.sleep(0.01)
    assert gc.get_freeze_count() < 1.5 * alive
