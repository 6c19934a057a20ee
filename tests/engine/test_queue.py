"""WaitingQueue: who is next, at what cost."""

import random
from collections.abc import Callable

import pytest

from jaxinfer.engine.kv.manager import BlockRefs
from jaxinfer.engine.scheduler.queue import WaitingQueue
from jaxinfer.engine.sequence import Sequence, Status
from tests.engine.small import ask, sequence_of, small_core


def sequence_maker() -> Callable[[int], Sequence]:
    """Makes sequences that wait, ranked by their numbers."""
    core = small_core()
    core.add_request(ask("r", 1))
    template = sequence_of(core, "r")

    def make(number: int) -> Sequence:
        sequence = template.child(0, BlockRefs(1))
        sequence.request_id, sequence.rank = str(number), (number,)
        return sequence

    return make


class Counted(int):
    """An integer that counts how often one was compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


@pytest.mark.long
def test_the_queue_costs_the_logarithm_of_its_length() -> None:
    count = 100_000
    queue, order = WaitingQueue(), random.Random(0).sample(range(count), count)
    make = sequence_maker()
    Counted.compared = 0
    for number in order:
        sequence = make(number)
        sequence.rank = (Counted(number),)
        queue.push(sequence)
    for number in range(100):
        sequence = queue.peek()
        assert sequence is not None
        assert sequence.rank == (number,)
        queue.take(sequence)
    assert len(queue) == queue.num_requests == count - 100
    # Two comparisons a level of the heap, 17 levels; a search would need `count` a sequence.
    assert Counted.compared < 2 * 17 * (count + 2 * 100)


def test_those_that_are_to_be_alone_come_first_in_their_order() -> None:
    queue, make = WaitingQueue(), sequence_maker()
    sequences = [make(number) for number in range(6)]
    for sequence in sequences:
        sequence.isolated = sequence.rank[0] in (5, 3)
        queue.push(sequence)
    order = []
    for has_alone in (True, True, False, False, False, False):
        assert queue.has_isolated == has_alone
        sequence = queue.peek()
        assert sequence is not None
        queue.take(sequence)
        order.append(sequence.rank[0])
    assert order == [3, 5, 0, 1, 2, 4]
    assert queue.peek() is None


def test_those_that_need_not_be_alone_any_more_stand_where_they_stood() -> None:
    queue, make = WaitingQueue(), sequence_maker()
    for number in range(4):
        sequence = make(number)
        sequence.isolated = number == 2
        queue.push(sequence)
    queue.end_isolation()
    assert not queue.has_isolated
    first = queue.peek()
    assert first is not None
    assert first.rank == (0,)
    assert not first.isolated


def test_those_that_are_gone_take_no_room() -> None:
    queue, make = WaitingQueue(), sequence_maker()
    for number in range(1000):
        sequence = make(number)
        sequence.isolated = True
        queue.push(sequence)
        sequence.status = Status.FINISHED
        queue.remove(sequence)
    assert len(queue._isolated) < 100
    assert len(queue) == 0
    assert not queue.has_isolated
