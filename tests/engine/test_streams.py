"""What steps add, by request, for readers that come sooner or later."""

import asyncio

import numpy as np
import pytest

from jaxinfer.engine.client.streams import Streams
from jaxinfer.engine.client_ids import client_id_of, sequence_id_of, split_by_client
from jaxinfer.engine.types import FinishReason, StepOutput, TokenDelta, output_of
from jaxinfer.errors import EngineDeadError, ParameterError


def first(name: str, sequence_id: int, token: int, index: int = 0) -> TokenDelta:
    return TokenDelta(name, index, [token], sequence_id=sequence_id)


def last(name: str, sequence_id: int, token: int, index: int = 0) -> TokenDelta:
    return TokenDelta(name, index, [token], finish_reason=FinishReason.LENGTH, sequence_id=sequence_id)


def plain(*rows: tuple[int, list[int]]) -> StepOutput:
    sequence_ids, tokens = [sequence_id for sequence_id, _ in rows], [token for _, own in rows for token in own]
    counts = [len(own) for _, own in rows]
    return StepOutput(np.array(sequence_ids, np.int64), np.array(counts, np.int32), np.array(tokens, np.int32), [])


async def test_tokens_find_their_sequences_by_the_ids_of_first_deltas() -> None:
    streams = Streams()
    a, b = streams.open("a", 1), streams.open("b", 2)
    streams.deliver([output_of([first("a", 7, 1), first("b", 9, 2, index=1)])])
    streams.deliver([plain((9, [3, 4]), (7, [5]), (1234, [6]))])  # nobody has told of 1234
    assert [(d.index, d.token_ids) for d in await anext(a)] == [(0, [1]), (0, [5])]
    assert [(d.index, d.token_ids) for d in await anext(b)] == [(1, [2]), (1, [3, 4])]
    streams.deliver([output_of([last("a", 7, 8)]), plain((9, [10]))])
    assert [d.token_ids for d in await anext(a)] == [[8]]
    with pytest.raises(StopAsyncIteration):
        await anext(a)
    assert [d.token_ids for d in await anext(b)] == [[10]]
    assert streams.request_ids == ["b"]


async def test_a_reader_that_waits_gets_each_step_and_one_that_comes_late_gets_all_at_once() -> None:
    streams = Streams()
    stream = streams.open("a", 1)
    waiting = asyncio.create_task(anext(stream))  # pyright: ignore[reportArgumentType]
    await asyncio.sleep(0)
    streams.deliver([output_of([first("a", 0, 1)])])
    assert [d.token_ids for d in await waiting] == [[1]]
    for token in (2, 3, 4):
        streams.deliver([plain((0, [token]))])
    assert [d.token_ids for d in await anext(stream)] == [[2], [3], [4]]


async def test_an_error_comes_after_what_came_before_it() -> None:
    streams = Streams()
    stream = streams.open("a", 1)
    with pytest.raises(ParameterError):
        streams.check_free("a")
    streams.deliver([output_of([first("a", 0, 1)])])
    streams.fail_all("gone")
    assert [d.token_ids for d in await anext(stream)] == [[1]]
    with pytest.raises(EngineDeadError):
        await anext(stream)
    streams.check_free("a")
    assert streams.request_ids == []


def test_outputs_are_split_by_client() -> None:
    one, two = sequence_id_of(1, 5), sequence_id_of(2, 5)
    assert (client_id_of(one), client_id_of(two)) == (1, 2)
    outputs = [plain((one, [1, 2]), (two, [3]), (sequence_id_of(1, 6), [4])), output_of([first("x", two, 9)])]
    parts = split_by_client(outputs, [1, 2, 3])
    assert sorted(parts) == [1, 2]
    assert [(part.sequence_ids.tolist(), part.tokens.tolist()) for part in parts[1]] == [
        ([one, sequence_id_of(1, 6)], [1, 2, 4])
    ]
    assert [(part.tokens.tolist(), len(part.deltas)) for part in parts[2]] == [([3], 0), ([], 1)]
