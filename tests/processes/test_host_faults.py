"""Processes of an engine over two hosts are killed, stopped and cut off: it is noticed, and both hosts start again.

JAXINFER_TEST_FAULTS is the number of faults, by default 6; JAXINFER_TEST_SEED draws others.
"""

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.draws import first_seed
from tests.processes.host_group import HostGroup, hosts_of
from tests.processes.hosts_requests import ENDED, Choices, ask, check, draw_requests, model_folder, right_answers

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

FAULTS = int(os.environ.get("JAXINFER_TEST_FAULTS") or 6)
SIZES = ("--dtype", "float32", "--max-num-seqs", "4", "--max-num-batched-tokens", "16", "-pp", "2", "-tp", "2")
REQUESTS = draw_requests(40, seed=2)
AGAIN = 0.3
"""How likely a second fault comes before the first one is mended."""
LOST = {
    "engine_unavailable",
    "loading",
    "ClientPayloadError",
    "ClientOSError",
    "ServerDisconnectedError",
    "ClientConnectorError",
}
"""How a request may end that a fault has met: by an error event, refused, or by its connection."""


class Fault(NamedTuple):
    """supervisor: the host whose supervisor must be started again."""

    inflict: Callable[[HostGroup], None]
    supervisor: int | None = None


def _engine(group: HostGroup, host_id: int) -> psutil.Process:
    return group.hosts[host_id].child("engine" if host_id == 0 else "follower")


KINDS = {
    "kill -9 of the engine of host 0": Fault(lambda group: _engine(group, 0).kill()),
    "kill -9 of the follower of host 1": Fault(lambda group: _engine(group, 1).kill()),
    "SIGSTOP of the engine of host 0": Fault(lambda group: _engine(group, 0).suspend()),
    "SIGSTOP of the follower of host 1": Fault(lambda group: _engine(group, 1).suspend()),
    "kill -9 of the supervisor of host 0": Fault(lambda group: group.hosts[0].process.kill(), 0),
    "kill -9 of the supervisor of host 1": Fault(lambda group: group.hosts[1].process.kill(), 1),
    "the stream is cut": Fault(lambda group: group.ways[0].stream.drop()),
    "JAX's own connection is cut": Fault(lambda group: group.ways[0].coordinator.drop()),
    "the stream is silent": Fault(lambda group: group.ways[0].stream.stall()),
    "a bit is flipped": Fault(lambda group: group.ways[0].stream.flip()),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model")


class Clients:
    """Requests one after another, all of which must end as they may. ends: how they did."""

    def __init__(self, group: HostGroup, right: list[Choices], count: int):
        self.ends: Counter[str] = Counter()
        self._group = group
        self._right = right
        self._stop = asyncio.Event()
        self._tasks = [asyncio.create_task(self._run(seed)) for seed in range(count)]

    async def until_served(self, seconds: float) -> None:
        """Waits until one more is answered."""
        before = self.ends[ENDED]
        async with asyncio.timeout(seconds):
            while self.ends[ENDED] == before:
                self._check()
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    def _check(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def _run(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._stop.is_set():
            number = rng.randrange(len(REQUESTS))
            async with asyncio.timeout(30):  # nothing hangs
                answer = await ask(self._group.session, self._group.hosts[0].url, REQUESTS[number])
            check(REQUESTS[number], answer, self._right[number])
            assert answer.end == ENDED or answer.end in LOST, answer
            self.ends[answer.end] += 1
            if answer.end != ENDED:
                await asyncio.sleep(0.1)


async def test_faults_under_load(model: Path, tmp_path: Path) -> None:
    rng = random.Random(first_seed())
    kinds = [kind for _ in range(-(-FAULTS // len(KINDS))) for kind in rng.sample(list(KINDS), len(KINDS))][:FAULTS]
    right = right_answers(model, REQUESTS)
    async with hosts_of(model, tmp_path, 2, *SIZES, "--max-restarts", "100") as group:
        clients = Clients(group, right, 6)
        for kind in kinds:
            await clients.until_served(20)
            await asyncio.sleep(2 * rng.random())
            noticed, gone, ready = await _inflict(group, KINDS[kind], rng)
            print(
                f"{kind}: noticed after {noticed:.1f} s, processes gone after {gone:.1f} s, ready after {ready:.1f} s"
            )
            assert noticed < 7, kind
            assert gone < 12, kind
        await clients.until_served(20)
        await clients.end()
        print(f"{FAULTS} faults: {dict(clients.ends)}")
        assert clients.ends.total() > clients.ends[ENDED]
        assert await group.hosts[0].metric("vllm:kv_cache_usage_perc") == 0
    for host_id in range(2):
        assert "HostLostError" not in group.text(host_id)  # no traceback of what a line has said


async def _inflict(group: HostGroup, fault: Fault, rng: random.Random) -> tuple[float, float, float]:
    """Seconds until it is noticed, until the processes of before have ended, and until all is ready again."""
    engines = group.engines()
    assert len(engines) == 2
    start = time.monotonic()

    async def first() -> float:
        while all(map(_runs, engines)) and await group.readiness(0) == 200:
            await asyncio.sleep(0.01)
        return time.monotonic() - start

    async def last() -> float:
        while any(map(_runs, engines)):
            await asyncio.sleep(0.01)
        return time.monotonic() - start

    fault.inflict(group)
    if fault.supervisor is not None:
        await group.hosts[fault.supervisor].process.wait()
        await asyncio.sleep(rng.random())
        await group.start(fault.supervisor)
    async with asyncio.timeout(20):
        noticed, gone = await asyncio.gather(first(), last())
    group.ways[0].stream.drop()  # it flows again
    if again := rng.random() < AGAIN:
        await asyncio.sleep(rng.uniform(0, 5))
        engines += await _kill_any(group, rng)
    ended = await group.until_restarted(engines, 90)
    assert again or ended == 0  # supervisors start their engines again
    return noticed, gone, time.monotonic() - start


async def _kill_any(group: HostGroup, rng: random.Random) -> list[psutil.Process]:
    """One more fault, while hosts start. Gives what goes with the process that is killed: for a moment it is still
    there, and says that all is ready."""
    supervisors = [psutil.Process(host.process.pid) for host in group.hosts]
    victim = rng.choice([*group.engines(), *supervisors])
    print(f"and {victim.cmdline()[2:5]} is killed", end=" ")
    lost = [victim, *victim.children()]
    victim.kill()
    return lost


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
