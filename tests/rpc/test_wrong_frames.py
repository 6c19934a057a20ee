"""A frame that is wrong ends what it belongs to, with an error, and nothing else."""

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest

from jaxinfer.engine.types import FinishReason, GenerateRequest, RequestTimes, TokenDelta, TokenLogprobs, output_of
from jaxinfer.errors import EngineDeadError, ParameterError
from jaxinfer.rpc import wire
from jaxinfer.rpc.channel import METHOD, SERVICE
from tests.engine.flat_stats import stats_of
from tests.engine.gate import Gate
from tests.engine.reading import read, until
from tests.engine.small import ask, right, small_core, tokens_of
from tests.rpc.seam import attached, engine_at, seam

PROMPT, SAMPLING = ("<i4", b"1234"), {"n": 1}


@pytest.mark.parametrize(
    "fields",
    [
        (("<i4", b"123"), SAMPLING, 0, "", ()),
        (("<f4", b"1234"), SAMPLING, 0, "", ()),
        (("O", bytes(8)), SAMPLING, 0, "", ()),
        ([1, 2, 3], SAMPLING, 0, "", ()),
        (PROMPT, {"n": 1000}, 0, "", ()),
        (PROMPT, {"temperature": "hot"}, 0, "", ()),
        (PROMPT, SAMPLING, 0.5, "", ()),
        (PROMPT, SAMPLING, 0, None, ()),
        (PROMPT, SAMPLING),
        {},
    ],
)
async def test_a_request_that_is_no_request_is_refused_and_the_stream_goes_on(fields: Any) -> None:
    core = small_core()
    async with seam(core) as client:
        answer = client._answers["bad"] = asyncio.get_running_loop().create_future()
        client._commands.put_nowait(wire.encode(wire.Submit("bad", msgspec.Raw(wire.encode(fields)))))
        assert "not understood" in str(await asyncio.wait_for(answer, 10))
        assert tokens_of(await read(await client.submit(ask("r", 4, 3)))) == right(core, ask("r", 4, 3))


async def test_a_request_that_has_no_frame_ends_nothing_else() -> None:
    core = small_core()
    async with seam(core) as client:
        with pytest.raises(ValueError, match="surrogates"):
            await client.submit(ask("\ud800", 4))
        assert tokens_of(await read(await client.submit(ask("r", 4, 3)))) == right(core, ask("r", 4, 3))


def damaged(data: bytes, draw: random.Random) -> bytes:
    """With a byte changed, taken out or put in, or cut."""
    at, other = draw.randrange(len(data)), draw.randbytes(draw.randint(1, 3))
    return draw.choice([data[:at], data[:at] + other + data[at + 1 :], data[:at] + data[at + 1 :], data[:at] + other])


async def test_a_damaged_frame_ends_its_stream_with_an_error_and_no_other(tmp_path: Path) -> None:
    gate, draw = Gate(), random.Random(0)
    core = small_core(gate, ahead=1)
    address = f"unix:{tmp_path / 'engine'}"
    submit = wire.encode(wire.pack_request(ask("open", 5, 30)))
    bad = [b"", b"\xc1", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\x92\xa5Abort\xa1\xff", b"\x92\xa5Other\x00"]
    bad += [b"\x93\xa6Submit\xa1r" + b"\x91" * 100_000]
    bad += [damaged(wire.encode(frame), draw) for frame in (wire.Stop("open", 0), wire.ReadStats(1)) for _ in range(10)]
    async with engine_at(core, address), attached(address) as client, grpc.aio.insecure_channel(address) as channel:
        gate.open.clear()
        stream = await client.submit(ask("r", 4, 3))
        for frame in bad:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
            await call.write(submit)
            await call.write(frame)
            await call.done_writing()
            with contextlib.suppress(grpc.aio.AioRpcError):
                async with asyncio.timeout(10):
                    async for _ in call:
                        pass
            try:
                wire.decode_command(frame)
            except (ValueError, RecursionError):
                assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert "not understood" in str(await call.details())
            else:
                assert await call.code() is grpc.StatusCode.OK
        gate.open.set()
        assert tokens_of(await read(stream)) == right(core, ask("r", 4, 3))
        await until(lambda: core.stats().scheduler.running + core.stats().scheduler.waiting == 0)
        assert core.stats().kv.blocks_used == 0


async def test_a_damaged_event_ends_every_stream_of_its_client(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    core = small_core(gate, ahead=1)
    async with seam(core) as client:
        gate.open.clear()
        stream = await client.submit(ask("r", 4, 3))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire, "encode", lambda frame: b"\xc1")
            with pytest.raises(EngineDeadError):
                await read(stream)
        assert "MessagePack" in caplog.text
        gate.open.set()
        await until(lambda: client.ready)
        assert tokens_of(await read(await client.submit(ask("after", 4, 3)))) == right(core, ask("after", 4, 3))


@pytest.mark.parametrize("kind", ["command", "event"])
def test_whatever_comes_is_decoded_or_a_value_error(kind: str) -> None:
    draw = random.Random(1)
    request = ask("r", 9, 4, logit_bias={4: 0.25}, seed=-7, stop_token_ids=(7,))
    entry = TokenLogprobs(3, -0.5, 1, [(3, -0.5)])
    delta = TokenDelta(
        "r", 0, [3], [entry], FinishReason.STOP, 3, 0, [None, entry], "e", RequestTimes(0.5, 0.1), 5, 0, "p"
    )
    output = output_of([delta])._replace(sequence_ids=np.arange(2), counts=np.array([1, 1]), tokens=np.arange(2))
    refused = wire.pack_error(ParameterError("n", "is wrong"))
    stats, info = (
        stats_of(running=1, waiting=2, kv_blocks_used=3, kv_blocks_total=4, host_devices=(2, 2)),
        small_core().info,
    )
    events = [wire.Hello(info, stats), wire.Answer("r", refused), wire.Step([output]), wire.Stats(stats, 3)]
    for _ in range(5000):
        try:
            if kind == "event":
                wire.decode_events(damaged(wire.encode(events), draw))
            else:
                command = wire.decode_command(damaged(wire.encode(wire.pack_request(request)), draw))
                if isinstance(command, wire.Submit):
                    wire.unpack_request(command)
        except ValueError:
            pass


async def test_a_prompt_of_megabytes_is_refused_as_any_other() -> None:
    core = small_core()
    async with seam(core) as client:
        with pytest.raises(ParameterError, match="1500000 tokens"):  # grpcio's own limit is 4 MiB
            await client.submit(GenerateRequest("long", [0] * 1_500_000))
        assert tokens_of(await read(await client.submit(ask("r", 4, 3)))) == right(core, ask("r", 4, 3))
