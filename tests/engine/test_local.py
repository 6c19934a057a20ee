"""LocalEngineClient keeps the promises of EngineClient, and survives nothing silently."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from jaxinfer.engine.client.local import LocalEngineClient
from jaxinfer.engine.types import FinishReason, TokenDelta
from jaxinfer.errors import EngineDeadError, ParameterError, QueueFullError
from tests.engine import left_open
from tests.engine.gate import Gate, serving
from tests.engine.reading import read, until
from tests.engine.small import ask, right, tokens_of
from tests.material import REPOSITORY


async def test_streams_end_with_their_last_sequence() -> None:
    async with serving() as (client, core, _):
        assert client.ready
        assert client.info.vocab_size == 61
        requests = [ask(f"r{i}", 3 + i, 8, n=1 + i % 3) for i in range(7)]
        streams = await asyncio.gather(*[read(await client.submit(request)) for request in requests])
        for request, deltas in zip(requests, streams, strict=True):
            for index in range(request.sampling.n):
                own = [delta for delta in deltas if delta.index == index]
                assert tokens_of(own) == right(core, request, index)
                assert own[-1].finish_reason is FinishReason.LENGTH
        assert client.stats().kv.blocks_used == 0


async def test_a_request_is_queued_before_anyone_reads_it() -> None:
    async with serving() as (client, core, gate):
        stream = await client.submit(ask("r", 4, 3))
        await until(lambda: len(gate.plans) >= 3)
        assert tokens_of(await read(stream)) == right(core, ask("r", 4, 3))


async def test_abort_and_stop() -> None:
    async with serving() as (client, _, gate):
        gate.open.clear()
        streams = [await client.submit(ask(name, 4, 40, n=n)) for name, n in (("abort", 2), ("stop", 2))]
        client.abort("nobody")
        client.stop("nobody", 0)
        client.abort("abort")
        gate.open.set()
        aborted = await read(streams[0])
        assert [d.finish_reason for d in aborted if d.finish_reason] == [FinishReason.ABORT] * 2
        reader = aiter(streams[1])
        seen = set()
        while seen != {0, 1}:
            seen |= {delta.index for delta in await anext(reader) if delta.token_ids}
        client.stop("stop", 1)
        rest = [delta async for deltas in reader for delta in deltas]
        ends = {delta.index: delta.finish_reason for delta in rest if delta.finish_reason}
        assert ends == {0: FinishReason.LENGTH, 1: FinishReason.STOP} or ends == {0: FinishReason.LENGTH}
        await until(lambda: client.stats().kv.blocks_used == 0)


async def test_refusals_are_raised_by_submit() -> None:
    async with serving(max_waiting=2) as (client, _, gate):
        with pytest.raises(ParameterError) as refused:
            await client.submit(replace(ask("r", 4), priority=1))
        assert refused.value.param == "priority"
        gate.open.clear()
        first = [await client.submit(ask("first", 4, 3))]
        with pytest.raises(ParameterError, match="in use"):
            await client.submit(ask("first", 4, 3))
        await until(lambda: len(gate.plans) >= 1)
        # Four slots and two that wait: with the engine held up all that are not taken up yet count as waiting.
        taken = [await _submitted(client, f"r{i}", first) for i in range(7)]
        assert False in taken
        assert 3 <= len(first) <= 7
        gate.open.set()
        ends = await asyncio.gather(*map(read, first))
        assert all(deltas[-1].finish_reason is FinishReason.LENGTH for deltas in ends)


async def _submitted(client: LocalEngineClient, name: str, streams: list[AsyncIterator[list[TokenDelta]]]) -> bool:
    try:
        streams.append(await client.submit(ask(name, 4, 3)))
    except QueueFullError:
        return False
    return True


async def test_when_the_engine_dies_every_stream_says_so() -> None:
    async with serving() as (client, _, gate):
        gate.open.clear()
        streams = [await client.submit(ask(f"r{i}", 4, 30)) for i in range(3)]
        gate.dead = RuntimeError("the device is gone")
        gate.fail_once("collect")
        gate.open.set()
        for stream in streams:
            with pytest.raises(EngineDeadError):
                await read(stream)
        assert not client.ready
        with pytest.raises(EngineDeadError) as dead:
            await client.submit(ask("late", 4))
        assert dead.value.__cause__ is gate.dead
        client.abort("r0")  # nobody is there, and nothing happens
        await until(lambda: gate.closed)


async def test_close_ends_what_runs_and_frees_the_device() -> None:
    async with serving() as (client, _, gate):
        gate.open.clear()
        streams = [await client.submit(ask(f"r{i}", 4, 30)) for i in range(6)]
        reading = [asyncio.ensure_future(read(stream)) for stream in streams]
        await until(lambda: len(gate.plans) >= 1)
        gate.open.set()
        await client.close()
        for deltas in await asyncio.gather(*reading):
            assert deltas[-1].finish_reason in (FinishReason.ABORT, FinishReason.LENGTH)
        assert gate.closed
        assert not client.ready
        with pytest.raises(EngineDeadError):
            await client.submit(ask("late", 4))
        await client.close()


async def test_leaving_a_stream_does_not_abort_and_an_abort_frees_the_blocks() -> None:
    async with serving() as (client, _, gate):
        stream = await client.submit(ask("r", 4, 40))
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        assert "r" in client._streams.request_ids or client.stats().scheduler.running == 0
        client.abort("r")
        await until(lambda: client.stats().kv.blocks_used == 0 and client.stats().scheduler.running == 0)
        assert len(gate.plans) > 0


async def test_after_a_step_that_failed_streams_go_on() -> None:
    async with serving() as (client, core, gate):
        number = iter(range(1000))
        gate.fails = lambda at, plan: at == "collect" and next(number) in (1, 2, 6)
        requests = [ask(f"r{i}", 3 + i, 12, n=1 + i % 3) for i in range(5)]
        streams = await asyncio.gather(*[read(await client.submit(request)) for request in requests])
        assert client.stats().core.step_faults == 3
        for request, deltas in zip(requests, streams, strict=True):
            for index in range(request.sampling.n):
                own = [delta for delta in deltas if delta.index == index]
                assert tokens_of(own) == right(core, request, index)
        assert client.ready


async def test_when_every_step_fails_streams_end_and_the_next_request_is_served() -> None:
    async with serving() as (client, core, gate):
        gate.fails = lambda at, plan: at == "collect"
        streams = [await client.submit(ask(f"r{i}", 4, 5, n=2)) for i in range(3)]
        for deltas in await asyncio.gather(*map(read, streams)):
            assert [delta.finish_reason for delta in deltas] == [FinishReason.ERROR] * 2
            assert all(delta.error and "StepBroke (tries: 3)" in delta.error for delta in deltas)
        gate.fail_never()
        assert client.ready
        assert tokens_of(await read(await client.submit(ask("r0", 4, 5)))) == right(core, ask("r0", 4, 5))
        assert client.stats().kv.blocks_used == 0


async def test_a_step_that_stalls_is_the_engines_death(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(step_timeout=0.3) as (client, _, gate):
        gate.open.clear()
        stream = await client.submit(ask("r0", 5, 9))
        with pytest.raises(EngineDeadError):
            async for _ in stream:
                pass
        assert not client.ready
        assert client.lost
        with pytest.raises(EngineDeadError):
            await client.submit(ask("r1", 5, 9))
        assert "--step-timeout" in caplog.text
        async with asyncio.timeout(10):
            await client.close()  # though the step never ends
        gate.open.set()
        await until(lambda: gate.closed)


async def test_a_stall_is_told_though_nobody_reads_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    read_at_last = threading.Event()
    monkeypatch.setattr("jaxinfer.engine.client.thread.dump_stacks", read_at_last.wait)
    async with serving(step_timeout=0.3) as (client, _, gate):
        gate.open.clear()
        stream = await client.submit(ask("r0", 5, 9))
        with pytest.raises(EngineDeadError):
            await read(stream)
        assert client.lost
        read_at_last.set()
        gate.open.set()
        await until(lambda: gate.closed)


class CountingWatchdog:
    """fed, asked: how often it was fed, and asked whether it has expired."""

    interval = 0.01

    def __init__(self, seconds: float):
        self.fed = self.asked = 0
        watchdogs.append(self)

    def feed(self) -> None:
        self.fed += 1

    def expired(self) -> bool:
        self.asked += 1
        return False


watchdogs: list[CountingWatchdog] = []


async def test_compiling_and_waiting_are_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxinfer.engine.client.thread.Watchdog", CountingWatchdog)
    monkeypatch.setattr(Gate, "compiling", True)
    watchdogs.clear()
    async with serving() as (client, core, gate):
        await until(lambda: bool(watchdogs) and watchdogs[0].fed > 5)
        gate.open.clear()
        stream = await client.submit(ask("r0", 5, 9))
        await until(lambda: gate.held)
        fed = watchdogs[0].fed
        await until(lambda: watchdogs[0].fed > fed + 5)
        assert watchdogs[0].asked == 0
        monkeypatch.setattr(Gate, "compiling", False)
        await until(lambda: watchdogs[0].asked > 5)
        gate.open.set()
        assert tokens_of(await read(stream)) == right(core, ask("r0", 5, 9))


def test_an_engine_that_nobody_closes_ends_before_python_does() -> None:
    """In the midst of its work: a thread that Python stops within JAX would end the process by a signal."""
    command = [sys.executable, "-m", left_open.__name__]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=60)
    assert (done.returncode, done.stdout) == (3, "closed\n"), done.stderr
