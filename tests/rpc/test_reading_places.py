"""Places of messages that are coming: never too many, none lost, and whom a wait ends for."""

import asyncio
import random

import pytest

from jaxinfer.rpc import reading_places
from jaxinfer.rpc.reading_places import ReadingPlaces
from jaxinfer.serving.errors import ErrorKind, RequestError


@pytest.mark.parametrize("seed", range(5))
async def test_there_are_never_too_many_and_none_is_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_places, "GRACE_SECONDS", 0.01)
    draw, places = random.Random(seed), ReadingPlaces(3, 1.0)
    inside, most, outcomes = 0, 0, {"whole": 0, "refused": 0, "late": 0}

    async def read(seconds: float) -> None:
        nonlocal inside, most
        try:
            async with places.place():
                inside += 1
                most = max(most, inside)
                try:
                    await asyncio.sleep(seconds)
                finally:
                    inside -= 1
            outcomes["whole"] += 1
        except RequestError as error:
            outcomes["late" if error.kind is ErrorKind.TIMED_OUT else "refused"] += 1

    tasks = []
    for _ in range(300):
        tasks.append(asyncio.create_task(read(draw.choice([0.0, 0.001, 0.03, 10.0]))))
        if draw.random() < 0.3:
            draw.choice(tasks).cancel()
        if draw.random() < 0.7:
            await asyncio.sleep(draw.choice([0.0, 0.0, 0.003]))
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (most, inside) == (3, 0)
    assert outcomes["whole"] > 0
    assert outcomes["refused"] > 0
    await asyncio.gather(*(read(0.0) for _ in range(3)))
    async with asyncio.TaskGroup() as group:  # all three are there again, at once
        together = asyncio.Barrier(3)
        for _ in range(3):
            group.create_task(meet(places, together))


async def meet(places: ReadingPlaces, together: asyncio.Barrier) -> None:
    async with places.place():
        await together.wait()


async def test_who_came_last_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_places, "GRACE_SECONDS", 1000.0)
    places, order, first = ReadingPlaces(1, 1000.0), [], asyncio.Event()

    async def read(number: int) -> None:
        async with places.place():
            order.append(number)
            await first.wait()

    tasks = []
    for number in range(4):
        tasks.append(asyncio.create_task(read(number)))
        await asyncio.sleep(0)
    first.set()
    await asyncio.gather(*tasks)
    assert order == [0, 3, 2, 1]


async def test_one_alone_is_refused_only_where_it_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_places, "GRACE_SECONDS", 0.0)
    places = ReadingPlaces(1, 0.3)
    with pytest.raises(RequestError, match="did not come"):
        async with places.place():
            await asyncio.sleep(10)


async def test_the_number_of_those_who_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_places, "GRACE_SECONDS", 1000.0)
    monkeypatch.setattr(reading_places, "_MOST_WAITING", 2)
    places, going = ReadingPlaces(1, 1000.0), asyncio.Event()

    async def read() -> str:
        try:
            async with places.place():
                await going.wait()
        except RequestError as error:
            return error.code or ""
        return "whole"

    tasks = [asyncio.create_task(read()) for _ in range(4)]
    await asyncio.sleep(0.01)
    going.set()
    assert await asyncio.gather(*tasks) == ["whole", "too_many_bodies", "whole", "whole"]


async def test_a_place_that_comes_to_one_who_just_left_is_not_lost() -> None:
    places = ReadingPlaces(1, 1000.0)

    async def read() -> None:
        async with places.place():
            pass

    async with places.place():
        waiting = asyncio.create_task(read())
        await asyncio.sleep(0)
    waiting.cancel()  # it has the place since a moment ago, and does not know
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    async with asyncio.timeout(30):
        await read()


async def test_one_whose_time_is_over_is_not_refused_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout that has expired cannot be set anew: who came in that moment failed, and a place was lost."""
    monkeypatch.setattr(reading_places, "GRACE_SECONDS", 0.0)
    places, leaving, gone = ReadingPlaces(1, 0.1), asyncio.Event(), asyncio.Event()

    async def read() -> None:
        async with places.place():
            try:
                await asyncio.sleep(10)
            finally:
                leaving.set()
                await gone.wait()

    async def another() -> str:
        async with places.place():
            return "whole"

    first = asyncio.create_task(read())
    await leaving.wait()
    second = asyncio.create_task(another())
    await asyncio.sleep(0)
    gone.set()
    with pytest.raises(RequestError, match="did not come"):
        await first
    assert await second == "whole"
