"""WaitingQueue: who is next, at what cost."""

import random
from collections.abc import Callable

from jaxinfer.engine.scheduler.queue import WaitingQueue
from jaxinfer.engine.sequence import Request, Status
from tests.engine.small import ask, choice_of, small_core


def request_maker() -> Callable[[int], Request]:
    """Makes requests that wait, ranked by their numbers."""
    core = small_core()
    core.add_request(ask("r", 1))
    template = choice_of(core, "r")

    def make(number: int) -> Request:
        request = template.child(0)
        request.request_id, request.rank = str(number), (number,)
        return request

    return make


class Counted(int):
    """An integer that counts how often one was compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_the_queue_costs_the_logarithm_of_its_length() -> None:
    count = 100_000
    queue, order = WaitingQueue(), random.Random(0).sample(range(count), count)
    make = request_maker()
    Counted.compared = 0
    for number in order:
        request = make(number)
        request.rank = (Counted(number),)
        queue.push(request)
    for number in range(100):
        request = queue.peek()
        assert request is not None
        assert request.rank == (number,)
        queue.take(request)
    assert len(queue) == queue.num_requests == count - 100
    # Two comparisons a level of the heap, 17 levels; a search would need `count` a request.
    assert Counted.compared < 2 * 17 * (count + 2 * 100)


def test_those_that_are_to_be_alone_come_first_in_their_order() -> None:
    queue, make = WaitingQueue(), request_maker()
    requests = [make(number) for number in range(6)]
    for request in requests:
        request.isolated = request.rank[0] in (5, 3)
        queue.push(request)
    order = []
    for has_alone in (True, True, False, False, False, False):
        assert queue.has_isolated == has_alone
        request = queue.peek()
        assert request is not None
        queue.take(request)
        order.append(request.rank[0])
    assert order == [3, 5, 0, 1, 2, 4]
    assert queue.peek() is None


def test_those_that_need_not_be_alone_any_more_stand_where_they_stood() -> None:
    queue, make = WaitingQueue(), request_maker()
    for number in range(4):
        request = make(number)
        request.isolated = number == 2
        queue.push(request)
    queue.end_isolation()
    assert not queue.has_isolated
    first = queue.peek()
    assert first is not None
    assert first.rank == (0,)
    assert not first.isolated


def test_those_that_are_gone_take_no_room() -> None:
    queue, make = WaitingQueue(), request_maker()
    for number in range(1000):
        request = make(number)
        request.isolated = True
        queue.push(request)
        request.status = Status.FINISHED
        queue.remove(request)
    assert len(queue._isolated) < 100
    assert len(queue) == 0
    assert not queue.has_isolated
