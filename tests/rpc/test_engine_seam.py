"""An engine behind a socket keeps the promises of EngineClient."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.engine.types import FinishReason
from jaxinfer.errors import EngineDeadError, ParameterError, QueueFullError
from jaxinfer.rpc.engine_server import EngineServer
from tests.engine.flat_stats import with_values
from tests.engine.gate import Gate
from tests.engine.reading import read, until
from tests.engine.small import ask, right, small_core, tokens_of
from tests.rpc.seam import attached, engine_at, seam


async def test_streams_are_those_of_the_engine() -> None:
    core = small_core(ahead=1)
    async with seam(core) as client:
        assert client.info == core.info
        requests = [ask(f"r{i}", 3 + i, 8, n=1 + i % 3) for i in range(7)]
        streams = await asyncio.gather(*[read(await client.submit(request)) for request in requests])
        for request, deltas in zip(requests, streams, strict=True):
            for index in range(request.sampling.n):
                own = [delta for delta in deltas if delta.index == index]
                assert tokens_of(own) == right(core, request, index)
                assert own[-1].finish_reason is FinishReason.LENGTH
        await until(lambda: client.stats().kv.blocks_used == 0 and client.stats().scheduler.running == 0)
        await until(lambda: with_values(client.stats(), idle_seconds=0) == with_values(core.stats(), idle_seconds=0))


async def test_log_probabilities_and_times_come_over_as_they_are() -> None:
    core, other = small_core(ahead=1), small_core(ahead=1)
    request = ask("r", 9, 4, logprobs=3, prompt_logprobs=2, seed=-7, logit_bias={4: 0.25}, temperature=0.3)
    async with seam(core) as client:
        deltas = await read(await client.submit(request))
    other.add_request(request)
    expected = [delta for _ in range(20) for output in other.step() for delta in output.deltas]
    assert [delta._replace(times=None, sequence_id=0) for delta in deltas] == [
        delta._replace(times=None, sequence_id=0) for delta in expected
    ]
    assert deltas[0].times is not None
    assert deltas[0].times.prefill > 0
    assert deltas[0].prompt_logprobs is not None
    assert deltas[0].prompt_logprobs[0] is None


async def test_refusals_are_raised_by_submit() -> None:
    gate = Gate()
    async with seam(small_core(gate, ahead=1, max_waiting=2)) as client:
        with pytest.raises(ParameterError) as refused:
            await client.submit(replace(ask("r", 4), priority=1))
        assert refused.value.param == "priority"
        gate.open.clear()
        first = [await client.submit(ask("r0", 4, 3))]
        with pytest.raises(ParameterError, match="in use"):
            await client.submit(ask("r0", 4, 3))
        full: list[QueueFullError] = []
        for i in range(1, 9):
            try:
                first.append(await client.submit(ask(f"r{i}", 4, 3)))
            except QueueFullError as error:
                full.append(error)
        assert full
        assert full[0].retry_after == 1
        gate.open.set()
        ends = await asyncio.gather(*map(read, first))
        assert all(deltas[-1].finish_reason is FinishReason.LENGTH for deltas in ends)


async def test_abort_and_stop() -> None:
    gate = Gate()
    async with seam(small_core(gate, ahead=1)) as client:
        gate.open.clear()
        aborted, stopped = [await client.submit(ask(name, 4, 40, n=2)) for name in ("abort", "stop")]
        client.abort("nobody")
        client.stop("nobody", 0)
        client.abort("abort")
        client.stop("stop", 1)
        gate.open.set()
        assert [d.finish_reason for d in await read(aborted) if d.finish_reason] == [FinishReason.ABORT] * 2
        ends = {d.index: d.finish_reason for d in await read(stopped) if d.finish_reason}
        assert ends[0] is FinishReason.LENGTH
        assert ends[1] in (FinishReason.STOP, FinishReason.LENGTH)
        await until(lambda: client.stats().kv.blocks_used == 0)


async def test_clients_hear_their_own_and_one_that_goes_leaves_nothing_behind(tmp_path: Path) -> None:
    gate = Gate()
    core = small_core(gate, ahead=1)
    address = f"unix:{tmp_path / 'engine'}"
    async with engine_at(core, address) as server, attached(address) as stays:
        async with attached(address) as goes:
            gate.open.clear()
            streams = [await client.submit(ask(name, 5, 30)) for client, name in ((stays, "stays"), (goes, "goes"))]
            goes._task.cancel()  # as if its process had been killed
            await until(lambda: len(server._sessions) == 1)  # the engine could be done with the request before it hears
            gate.open.set()
            with pytest.raises(EngineDeadError):
                await read(streams[1])
        assert tokens_of(await read(streams[0])) == right(core, ask("stays", 5, 30))
        await until(lambda: core.stats().kv.blocks_used == 0 and core.stats().scheduler.running == 0)
        assert core.stats().core.abandoned_requests == 1


async def test_when_the_engine_goes_streams_end_and_when_it_is_back_it_serves(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'engine'}"
    async with engine_at(small_core(ahead=1), address) as server, attached(address) as client:
        assert tokens_of(await read(await client.submit(ask("before", 4, 3))))
        await server._server.stop(grace=None)  # the socket goes first, as when the process is killed
        await until(lambda: not client.ready)
        with pytest.raises(EngineDeadError):
            await client.submit(ask("between", 4, 3))
        with pytest.raises(EngineDeadError):
            client.stats()
        core = small_core(ahead=1)
        async with engine_at(core, address):
            await until(lambda: client.ready)
            assert tokens_of(await read(await client.submit(ask("after", 4, 3)))) == right(core, ask("after", 4, 3))


async def test_only_who_has_the_key_may_attach() -> None:
    core, server_key = small_core(ahead=1), "secret"
    server = EngineServer(core, key=server_key)
    address = await server.start("127.0.0.1:0")
    try:
        async with attached(address, key=server_key) as client:
            assert tokens_of(await read(await client.submit(ask("r", 4, 3)))) == right(core, ask("r", 4, 3))
        for wrong in (None, "guess"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5), attached(address, key=wrong):
                    pass
    finally:
        await server.close()


async def test_an_engine_of_another_model_is_not_taken_for_the_one_that_was_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"unix:{tmp_path / 'engine'}"
    async with engine_at(small_core(), address) as server, attached(address) as client:
        await server._server.stop(grace=None)
        await until(lambda: not client.ready)
        other = small_core()
        other.info = other.info._replace(vocab_size=99)
        async with engine_at(other, address):
            await until(lambda: "serves another model" in caplog.text)
            await asyncio.sleep(0.5)
            assert not client.ready
        assert len([record for record in caplog.records if "another model" in record.message]) == 1


async def test_an_engine_that_comes_back_with_other_blocks_is_the_same_to_its_clients(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'engine'}"
    async with engine_at(small_core(), address) as server, attached(address) as client:
        await server._server.stop(grace=None)
        await until(lambda: not client.ready)
        core = small_core()
        core.info = core.info._replace(num_blocks=7, attention_backend="other")
        async with engine_at(core, address):
            await until(lambda: client.ready)
            assert client.info == core.info
            assert not client.lost


async def test_a_submit_that_is_cancelled_leaves_no_stream_whatever_the_answer() -> None:
    gate = Gate()
    async with seam(small_core(gate, ahead=1, max_waiting=2)) as client:
        gate.open.clear()
        tasks = [asyncio.create_task(client.submit(ask(f"r{i}", 4, 3))) for i in range(20)]
        for _ in range(3):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gate.open.set()
        await until(lambda: not client._streams.request_ids and not client._answers)
        await until(lambda: client.stats().scheduler.running + client.stats().scheduler.waiting == 0)


async def test_an_engine_of_another_version_is_not_attached_to(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("jaxinfer.rpc.engine_server.METHOD", "Attach-0.0.9")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5), seam(small_core()):
            pass
    assert "it is not of version" in caplog.text


@pytest.mark.parametrize(
    "address", ["unix:/no/such/folder/engine", "unix:{}/a#b", "unix:{}/" + "x" * 100, "127.0.0.1:{}"]
)
async def test_where_an_engine_cannot_listen_it_says_so(address: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = address.format(taken.getsockname()[1] if address[0] == "1" else tmp_path)
        with pytest.raises(ParameterError) as error:
            await EngineServer(small_core()).start(place)
    assert error.value.param == "listen"


async def test_an_engine_does_not_take_the_path_of_another(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'engine'}"
    async with engine_at(small_core(), address):
        with pytest.raises(ParameterError, match="another engine listens"):
            await EngineServer(small_core()).start(address)
        assert (tmp_path / "engine").stat().st_mode & 0o077 == 0
        async with attached(address) as client:
            assert client.ready


class Silent(EngineServer):
    """Tells what it should until it is silent, and then nothing, as a process that is stopped."""

    silent = False

    async def attach(self, frames: Any, context: Any) -> AsyncIterator[bytes]:
        async for frame in super().attach(frames, context):
            while self.silent:
                await asyncio.sleep(0.01)
            yield frame


async def test_an_engine_that_is_silent_has_gone_until_it_speaks_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    core = small_core(gate, ahead=1)
    monkeypatch.setattr("tests.rpc.seam.EngineServer", Silent)
    async with seam(core, silence_seconds=0.5) as client:
        await asyncio.sleep(1.5)  # an idle one shows itself
        assert client.ready
        gate.open.clear()
        stream = await client.submit(ask("r0", 5, 9))
        Silent.silent = True
        try:
            with pytest.raises(EngineDeadError):
                await read(stream)
            assert not client.ready
            assert "silent for 0.5 s" in caplog.text
            await asyncio.sleep(1.5)  # it can be reached, and tells nothing
            assert not client.ready
        finally:
            Silent.silent = False
            gate.open.set()
        await until(lambda: client.ready)
        deltas = await read(await client.submit(ask("r1", 5, 9)))
        assert tokens_of(deltas) == right(core, ask("r1", 5, 9))
