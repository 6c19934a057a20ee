"""Large bodies of several API keys share the processes that read them."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.fair_queue import FairQueue
from jaxinfer.serving.errors import ErrorKind, RequestError
from jaxinfer.serving.workers.places import WorkerPlaces
from tests.children import worker_pids
from tests.server.conftest import Served

COSTS = st.lists(st.integers(1, 50), min_size=40, max_size=40)


@given(COSTS, COSTS)
def test_two_keys_that_always_wait_are_served_alike(first: list[int], second: list[int]):
    """They never differ by more than an item of each: the bound of start-time fair queueing."""
    queue, served = FairQueue[int](), {"a": 0, "b": 0}
    for one, other in zip(first, second, strict=True):
        queue.push("a", one, one)
        queue.push("b", other, other)
    for _ in range(40):
        key, cost = queue.pop() or ("", 0)
        served[key] += cost
        assert abs(served["a"] - served["b"]) <= max(first) + max(second)


def test_items_of_one_key_keep_their_order_and_a_newcomer_waits_for_one_of_them():
    queue = FairQueue[str]()
    for number in range(5):
        queue.push("a", 100, f"a{number}")
    assert queue.pop() == ("a", "a0")
    queue.push("b", 1, "b0")
    assert [queue.pop() for _ in range(3)] == [("b", "b0"), ("a", "a1"), ("a", "a2")]


def test_a_key_gains_nothing_by_having_been_idle():
    queue = FairQueue[int]()
    for number in range(10):
        queue.push("a", 1, number)
        queue.pop()
    for key in "ab":
        for number in range(3):
            queue.push(key, 1, number)
    assert [(queue.pop() or ("", 0))[0] for _ in range(6)] in (list("ababab"), list("bababa"))


def test_an_item_that_was_taken_out_never_comes():
    queue = FairQueue[str]()
    for each in ("x", "y"):
        queue.push("a", 1, each)
    queue.discard("a", "x")
    assert (len(queue), queue.pop(), queue.pop()) == (1, ("a", "y"), None)


def test_who_took_items_out_is_not_charged_for_them():
    """Of a key whose jobs waited too long, the next one would come after all of another's."""
    queue = FairQueue[str]()
    for number in range(20):
        queue.push("a", 100, f"a{number}")
    for number in range(20):
        queue.discard("a", f"a{number}")
    for number in range(3):
        queue.push("b", 100, f"b{number}")
    queue.push("a", 100, "last")
    assert [(queue.pop() or ("", 0))[0] for _ in range(4)] == ["b", "a", "b", "b"]


def test_items_after_one_that_was_taken_out_move_up():
    queue = FairQueue[str]()
    for number, cost in enumerate((1, 100, 1)):
        queue.push("a", cost, f"a{number}")
    queue.push("b", 50, "b0")
    queue.push("b", 50, "b1")
    queue.discard("a", "a1")
    assert [queue.pop() for _ in range(4)] == [("a", "a0"), ("b", "b0"), ("a", "a2"), ("b", "b1")]


async def is_free(places: WorkerPlaces, key: str) -> bool:
    """Whether a key gets a place without waiting."""
    taking = asyncio.create_task(places.take(key, 1))
    for _ in range(5):
        await asyncio.sleep(0)
    taking.cancel()
    await asyncio.wait([taking])
    return not taking.cancelled()


@pytest.mark.parametrize(("shared", "second_is_free"), [(True, False), (False, True)])
async def test_no_key_takes_the_last_place_if_there_are_others(shared: bool, second_is_free: bool):
    places = WorkerPlaces(2, 30, shared=shared)
    await places.take("a", 1)
    assert await is_free(places, "a") is second_is_free
    if shared:
        assert await is_free(places, "b")


async def test_one_place_is_everybodys():
    places = WorkerPlaces(1, 30, shared=True)
    assert await is_free(places, "a")
    assert not await is_free(places, "b")
    places.give_back("a")
    assert await is_free(places, "b")


async def test_who_waits_too_long_is_told_to_come_back():
    places = WorkerPlaces(1, 0.01, shared=False)
    await places.take("", 1)
    with pytest.raises(RequestError) as caught:
        await places.take("", 1)
    assert (caught.value.kind, caught.value.code) == (ErrorKind.UNAVAILABLE, "too_many_bodies")
    places.give_back("")
    await places.take("", 1)


async def test_who_leaves_in_the_moment_its_place_comes_leaves_the_place_to_others():
    places = WorkerPlaces(1, 30, shared=False)
    await places.take("", 1)
    leaving = asyncio.create_task(places.take("", 1))
    await asyncio.sleep(0)
    places.give_back("")
    leaving.cancel()
    await asyncio.wait([leaving])
    assert await is_free(places, "") is True


async def test_a_flood_of_one_key_does_not_hold_up_another(serve, tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("a\nb\n")
    served: Served = await serve(api_key_file=str(keys), body_workers=2)
    body = {"prompt": "a", "user": "x" * 100_000}
    assert (await served.post("/v1/completions", body, headers={"X-Api-Key": "a"})).status == 200
    (stopped,) = worker_pids()
    os.kill(stopped, signal.SIGSTOP)
    try:
        flood = [
            asyncio.create_task(served.post("/v1/completions", body, headers={"X-Api-Key": "a"})) for _ in range(8)
        ]
        await asyncio.sleep(0.1)
        assert (await served.post("/v1/completions", body, headers={"X-Api-Key": "b"})).status == 200
        assert not any(task.done() for task in flood)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert {(await task).status for task in flood} == {200}
