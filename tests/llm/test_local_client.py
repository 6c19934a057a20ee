"""LocalEngineClient between an event loop and the engine's thread: ends, ids used again, loops that close, failures."""

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer import AsyncLLM, SamplingParams
from jaxinfer.engine.client.local import LocalEngineClient
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.types import FinishReason, GenerateRequest, TokenDelta
from jaxinfer.engine.validation import CheckedRequest
from jaxinfer.errors import EngineDeadError, JaxinferError, ParameterError
from jaxinfer.llm import engine_config
from tests.llm import simulated
from tests.text.folders import byte_level_folder


def make_client(**flags: Any) -> LocalEngineClient:
    return LocalEngineClient(simulated.build_engine(engine_config("m", None, flags)).core)


def request(name: str, max_tokens: int, prompt: Any = (1, 2), **params: Any) -> GenerateRequest:
    return GenerateRequest(name, prompt, SamplingParams(max_tokens=max_tokens, seed=1, **params))


async def read(client: LocalEngineClient, asked: GenerateRequest) -> list[TokenDelta]:
    return [delta async for deltas in await client.submit(asked) for delta in deltas]


def reasons(deltas: list[TokenDelta]) -> list[FinishReason]:
    return [delta.finish_reason for delta in deltas if delta.finish_reason is not None]


async def test_an_id_can_be_used_again_as_soon_as_its_last_delta_has_come() -> None:
    client = make_client()
    beside = asyncio.create_task(read(client, request("beside", 60)))
    stop = simulated.right_tokens([1, 2], 3, seed=1)[-1]
    for _ in range(15):
        assert reasons(await read(client, request("same", 9, stop_token_ids=(stop,)))) == [FinishReason.STOP]
    assert reasons(await beside) == [FinishReason.LENGTH]
    await client.close()


async def test_an_abort_before_the_engine_has_seen_the_request_ends_it() -> None:
    client = make_client()
    source = await client.submit(request("a", 50, n=3))
    client.abort("a")
    deltas = [delta async for deltas in source for delta in deltas]
    assert [(delta.index, delta.finish_reason) for delta in deltas] == [(i, FinishReason.ABORT) for i in range(3)]
    assert client.stats().kv.blocks_used == 0
    await client.close()


async def test_close_ends_streams_and_frees_blocks() -> None:
    client = make_client()
    reading = [asyncio.create_task(read(client, request(f"r{i}", 60, n=2))) for i in range(6)]
    await asyncio.sleep(0.01)
    await client.close()
    for deltas in await asyncio.wait_for(asyncio.gather(*reading), 10):
        assert len(reasons(deltas)) == 2
    assert client.stats().kv.blocks_used == 0
    with pytest.raises(EngineDeadError):
        await client.submit(request("late", 2))


async def test_ids_that_are_no_integers_are_refused() -> None:
    client = make_client()
    for prompt in ([1.5, 2], np.array([1.0, 2.0]), np.array([np.nan])):
        with pytest.raises(ParameterError, match="prompt: token ids must be integers"):
            await read(client, request("bad", 2, prompt=prompt))
    await client.close()


async def test_a_request_that_cannot_be_queued_ends_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = EngineCore.add

    def failing(self: EngineCore, checked: CheckedRequest, *, client_id: int = 0) -> None:
        if checked.request.request_id == "bad":
            raise RuntimeError("a defect")
        add(self, checked, client_id=client_id)

    monkeypatch.setattr(EngineCore, "add", failing)
    client = make_client()
    beside = asyncio.create_task(read(client, request("beside", 40)))
    await asyncio.sleep(0)
    with pytest.raises(JaxinferError) as error:
        await read(client, request("bad", 2))
    assert not isinstance(error.value, EngineDeadError)
    assert "bad" in caplog.text
    assert reasons(await beside) == [FinishReason.LENGTH]
    assert client.ready
    await client.close()


async def test_an_engine_that_fails_ends_every_stream(caplog: pytest.LogCaptureFixture) -> None:
    built = simulated.build_engine(engine_config("m", None, {})).core
    device: Any = built.runner
    collect, steps = device.collect, iter(range(100))

    def failing(index: int) -> Any:
        if next(steps) == 5:
            raise RuntimeError("the step failed")
        return collect(index)

    def lost() -> None:
        raise RuntimeError("the device was lost")

    device.collect, device.reset = failing, lost
    client = LocalEngineClient(built)
    ends = await asyncio.gather(*(read(client, request(f"r{i}", 60)) for i in range(4)), return_exceptions=True)
    assert [type(end) for end in ends] == [EngineDeadError] * 4
    assert not client.ready
    assert "the device was lost" in caplog.text
    with pytest.raises(EngineDeadError):
        await client.submit(request("late", 2))
    client.abort("r0")
    await asyncio.wait_for(client.close(), 10)


def test_what_a_closed_event_loop_left_behind_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxinfer.build.build_engine", simulated.build_engine)
    monkeypatch.setattr("jaxinfer.build.folders.model_folder", simulated.model_folder)
    llm = AsyncLLM(str(byte_level_folder(tmp_path)), max_waiting=8, max_num_seqs=2)

    async def ask(name: str, count: int) -> int:
        params = SamplingParams(max_tokens=count, seed=4)
        outputs = [output async for output in llm.generate("hello", params, name)]
        return len(outputs[-1].outputs[0].token_ids)

    async def leave(name: str) -> None:
        left = asyncio.create_task(ask(name, 60))
        await asyncio.sleep(0)
        assert not left.done()

    for i in range(40):
        asyncio.run(leave(f"r{i}"))
        time.sleep(0.01)
    for _ in range(3):
        assert asyncio.run(ask("last", 3)) == 3
    assert llm.client.stats().kv.blocks_used == 0
    asyncio.run(llm.close())


async def test_two_event_loops_at_once_are_refused() -> None:
    client = make_client()
    await read(client, request("a", 2))

    def elsewhere() -> None:
        asyncio.run(read(client, request("b", 2)))

    with pytest.raises(RuntimeError, match="another event loop"):
        await asyncio.to_thread(elsewhere)
    await client.close()
