"""What bodies that are coming may take of memory, all together."""

import asyncio

import pytest

from jaxinfer.server.body_budget import BodyBudget
from jaxinfer.serving.errors import RequestError


async def test_a_body_may_be_refused_in_the_moment_in_which_its_time_is_over():
    """A timeout that has expired cannot be set anew: the body that took its memory failed with it."""
    share, leaving, gone = BodyBudget(100, shared=False).begin(), asyncio.Event(), asyncio.Event()

    async def reading() -> bytes:
        try:
            await asyncio.sleep(10)
        finally:
            leaving.set()
            await gone.wait()
        return b""

    watched = asyncio.create_task(share.watched(reading, 0.01))
    await leaving.wait()
    share.refuse()
    gone.set()
    with pytest.raises(RequestError, match="no memory for more bodies"):
        await watched


def wait(budget: BodyBudget, key: str, size: int) -> bool:
    """Whether a body that has come whole may wait."""
    share = budget.begin(key)
    share.grow(size)
    try:
        share.wait()
    except RequestError:
        return False
    return True


def test_bodies_of_one_key_that_wait_leave_room_for_those_of_another():
    budget = BodyBudget(200, shared=True)
    assert [wait(budget, "a", 10) for _ in range(10)] == [True] * 5 + [False] * 5
    assert [wait(budget, "b", 10) for _ in range(5)] == [True] * 3 + [False] * 2
    assert wait(budget, "c", 10)


def test_the_longest_body_may_wait():
    assert wait(BodyBudget(200, shared=True), "a", 100)


def test_without_other_keys_there_is_nobody_to_leave_room_for():
    budget = BodyBudget(200, shared=False)
    assert [wait(budget, "a", 10) for _ in range(11)] == [True] * 10 + [False]
