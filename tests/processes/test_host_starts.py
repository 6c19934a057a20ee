"""Hosts that come and go: who does not fit is refused, and a signal ends what it is sent to."""

import asyncio
import re
import signal
import sys
from pathlib import Path

import pytest

from jaxinfer.version import __version__
from tests.cli.command_line import REAL
from tests.cli.other_version import OTHER
from tests.processes.host_group import HostGroup, hosts_of
from tests.processes.hosts_requests import ask, check, draw_requests, model_folder, right_answers

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SIZES = ("--dtype", "float32", "--max-num-seqs", "4", "--max-num-batched-tokens", "16")
REQUESTS = draw_requests(6, seed=3)
OTHER_VERSION = (sys.executable, "-m", "tests.cli.other_version")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("hosts") / "model")


async def assert_served(group: HostGroup, model: Path) -> None:
    found = await asyncio.gather(*(ask(group.session, group.hosts[0].url, body) for body in REQUESTS))
    for body, answer, right in zip(REQUESTS, found, right_answers(model, REQUESTS), strict=True):
        assert answer.end == "[DONE]"
        check(body, answer, right)


async def refusal(group: HostGroup, *flags: str, model: Path | None = None, program: tuple[str, ...] = REAL) -> str:
    """What host 1 prints, which must end at once."""
    before = len(group.text(1))
    host = await group.start(1, *flags, model=model, program=program)
    async with asyncio.timeout(60):
        assert await host.process.wait() not in (0, None)
    text = group.text(1)[before:]
    assert "Traceback" not in text
    return text


async def test_a_host_that_differs_is_refused_with_both_values(model: Path, tmp_path: Path) -> None:
    """And may come again."""
    mesh, other = tmp_path / "mesh.yaml", tmp_path / "other.yaml"
    mesh.write_text("axes: {tensor: 2}")
    other.write_text("axes: {stage: 2}")
    trained = model_folder(tmp_path / "trained", seed=1)
    async with hosts_of(model, tmp_path, 2, *SIZES, start=False) as group:
        await group.start(0, "--mesh", str(mesh))
        own = ("--mesh", str(mesh))
        refused = "jaxinfer: error: host 0 at 127.0.0.1:[0-9]+ has refused host 1: "
        for pattern, text in {
            "weights is '[0-9a-f]{20}' on host 0 and '[0-9a-f]{20}' on host 1": await refusal(
                group, *own, model=trained
            ),
            "max_num_seqs is '4' on host 0 and '5' on host 1": await refusal(group, *own, "--max-num-seqs", "5"),
            r"mesh is 'axes:\\n +tensor: 2\\n' on host 0 and 'axes:\\n +stage: 2\\n' on host 1": await refusal(
                group, "--mesh", str(other)
            ),
            f"jaxinfer is '{__version__}' on host 0 and '{OTHER}' on host 1": await refusal(
                group, *own, program=OTHER_VERSION
            ),
        }.items():
            assert re.search(refused + pattern, text), text
        assert await group.readiness(0) == 503
        await group.start(1, *own)
        await group.until_ready()
        await assert_served(group, model)


async def test_signals_to_supervisors(model: Path, tmp_path: Path) -> None:
    async with hosts_of(model, tmp_path, 2, *SIZES, "-tp", "2") as group:
        before = [engine.pid for engine in group.engines()]
        for host in group.hosts:
            host.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(8)
        await assert_served(group, model)
        for host in group.hosts:
            host.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(2)
        assert [engine.pid for engine in group.engines()] == before  # nobody was blamed

        group.hosts[1].process.terminate()
        async with asyncio.timeout(10):
            assert await group.hosts[1].process.wait() == 0
        await group.until_status(503, [0], 10)
        await asyncio.sleep(5)  # host 0 waits
        assert await group.readiness(0) == 503
        assert len(group.engines()) == 1
        await group.start(1)
        await group.until_ready()
        await assert_served(group, model)

        engines = group.engines()
        group.hosts[0].process.terminate()
        async with asyncio.timeout(20):
            assert [await host.process.wait() for host in group.hosts] == [0, 0]
        assert not [engine for engine in engines if engine.is_running()]


async def test_an_engine_that_stalls_ends_no_host(model: Path, tmp_path: Path) -> None:
    """Host 0's engine ends by itself, as a step takes too long: its follower must not take that for an end in order."""
    async with hosts_of(model, tmp_path, 2, *SIZES, "-tp", "2", "--step-timeout", "1") as group:
        engines = group.engines()
        body = {**REQUESTS[0], "max_tokens": 60, "stream": True}
        asking = asyncio.create_task(ask(group.session, group.hosts[0].url, body))
        await group.hosts[0].until_running(1)
        engines[1].suspend()
        assert (await asking).end in ("engine_unavailable", "[DONE]")  # tried again if it had no token yet
        await asyncio.sleep(0.5)
        engines[1].resume()
        assert await group.until_restarted(engines, 60) == 0
        await assert_served(group, model)


async def test_a_flipped_bit_is_detected_in_its_step(model: Path, tmp_path: Path) -> None:
    async with hosts_of(model, tmp_path, 2, *SIZES, "-pp", "2") as group:
        engines = group.engines()
        group.ways[0].stream.flip()
        answer = await ask(group.session, group.hosts[0].url, {**REQUESTS[0], "max_tokens": 60, "stream": True})
        assert answer.end in ("engine_unavailable", "[DONE]")  # tried again if it had no token yet
        assert await group.until_restarted(engines, 60) == 0
        found = re.search(
            r"digest of call \d+: the message has 0x[0-9a-f]{8}, its bytes give 0x[0-9a-f]{8}", group.text(1)
        )
        assert found is not None
        assert "this host ends" in group.text(0)
        await assert_served(group, model)
