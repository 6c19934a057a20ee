"""Who is refused when the queue is full."""

import itertools
from collections import Counter

import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.errors import QueueFullError
from tests.engine.gate import serving
from tests.engine.ledger import live_names
from tests.engine.reading import until
from tests.engine.small import run, small_core
from tests.engine.tenants import asked_by

NUMBERS = itertools.count()


def another_of(tenant: str) -> GenerateRequest:
    return asked_by(tenant, str(next(NUMBERS)), prompt=3, tokens=2)


def fill(core: EngineCore, tenant: str, most: int = 1000) -> int:
    """Queues requests of a tenant until one is refused; how many were queued."""
    for number in range(most):
        try:
            core.add_request(another_of(tenant))
        except QueueFullError:
            return number
    return most


def test_a_key_that_fills_the_queue_leaves_room_for_others() -> None:
    core = small_core(max_waiting=100)
    assert fill(core, "flood") == 100
    assert fill(core, "second") == 50  # half of what is free of 200
    assert fill(core, "third") == 25
    assert fill(core, "flood") == 0
    assert core.num_waiting == 175
    for name in [name for name in live_names(core) if name.startswith("flood")]:
        core.abort(name)
    assert fill(core, "fourth") == 63
    run(core)
    assert core.num_waiting == 0
    assert fill(core, "last") == 100


def test_twice_as_many_is_the_bound_whatever_the_keys() -> None:
    core = small_core(max_waiting=20)
    for number in range(100):
        fill(core, f"key{number}", 1)
    assert core.num_waiting == 40


def test_below_its_bound_the_queue_refuses_nobody() -> None:
    core = small_core(max_waiting=20)
    for number in range(20):
        core.add_request(another_of("ab"[number % 5 == 0]))


@pytest.mark.parametrize("mode", ["key", "user"])
def test_users_of_a_key_are_told_apart_where_that_is_asked_for(mode: str) -> None:
    core = small_core(max_waiting=100, fair_share=mode)
    assert fill(core, "key/flood") == 100
    assert fill(core, "key/other") == (50 if mode == "user" else 0)


def test_made_up_users_do_not_take_all_places() -> None:
    core = small_core(max_waiting=100, fair_share="user")
    for number in range(1000):
        fill(core, f"hostile/{number}", 1)
    assert core.num_waiting == 150
    assert fill(core, "other/user") == 25


def test_without_fair_sharing_the_bound_is_for_all() -> None:
    core = small_core(max_waiting=100, fair_share="off")
    assert fill(core, "flood") == 100
    assert fill(core, "other") == 0


async def test_requests_on_their_way_to_the_engine_count() -> None:
    """The engine is held up, and takes nothing up: those who submit are refused as if the requests were queued."""
    async with serving(max_waiting=8) as (client, core, gate):
        gate.open.clear()
        await client.submit(another_of("first"))
        await until(lambda: gate.held)
        taken: Counter[str] = Counter()
        for tenant in ("flood", "other", "flood"):
            for _ in range(30):
                request = another_of(tenant)
                try:
                    await client.submit(request)
                except QueueFullError:
                    break
                taken[tenant] += 1
        assert taken == {"flood": 8, "other": 4}  # half of what is free of 16
        gate.open.set()
        await until(lambda: core.num_waiting == 0)
