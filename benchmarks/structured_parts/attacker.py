"""Attack a server from a process of the lowest priority: real attackers are on other machines."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import aiohttp
import psutil

from benchmarks.structured_parts.hostile import ATTACKS

QUIET, CONTROL = "quiet", "control"
"""Attacks that are none: nothing happens, and as many processes as there are cores count, at the lowest priority."""
AT_ONCE, PATIENCE = 16, 60.0
"""Requests of an attack that may be open at a time; seconds after which an answer counts as none."""
NO_ANSWER = 0


class Attack(NamedTuple):
    """round: of how many such; no two send the same. rate: requests a second."""

    name: str
    round: int
    rate: float
    seconds: float


_prepared: list[tuple[Attack, list[bytes]]] = []


def give_way() -> None:
    """Give this process the lowest priority."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def prepare(attack: Attack) -> None:
    """Makes the bodies, which takes time that readers of streams have not."""
    first, count = int(attack.round * attack.rate * attack.seconds), max(1, int(attack.rate * attack.seconds))
    bodies = [ATTACKS[attack.name][0](first + i) for i in range(count)] if attack.name in ATTACKS else []
    _prepared[:] = [(attack, bodies)]


def carry_out(url: str, pids: Sequence[int]) -> dict[str, Any]:
    """Carry out the prepared attack until the last answer has come; return the answers by status, and the server's
    memory meanwhile."""
    attack, bodies = _prepared[0]
    with _memory_watched(pids) as seen:
        match attack.name:
            case "quiet":
                time.sleep(attack.seconds)
                answers: Counter[int] = Counter()
            case "control":
                _count_everywhere(attack.seconds)
                answers = Counter()
            case _:
                answers = asyncio.run(_send_all(url, bodies, attack))
    return {"answers": dict(answers), "most_mb": max(seen), "last_mb": seen[-1]}


def _count_everywhere(seconds: float) -> None:
    counting = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    time.sleep(seconds)
    for process in counting:
        process.kill()
        process.wait()


def memory_mb(pids: Sequence[int]) -> float:
    """Return the MiB of these processes and their children, with shared memory divided among those that share it."""
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += process.memory_full_info().pss
    return total / 2**20


@contextlib.contextmanager
def _memory_watched(pids: Sequence[int]) -> Iterator[list[float]]:
    """Twice a second, and at the end."""
    seen, done = [memory_mb(pids)], threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            seen.append(memory_mb(pids))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()
        seen.append(memory_mb(pids))


async def _send_all(url: str, bodies: list[bytes], attack: Attack) -> Counter[int]:
    answers: Counter[int] = Counter()
    places, timeout = asyncio.Semaphore(AT_ONCE), aiohttp.ClientTimeout(PATIENCE)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
        begun = time.perf_counter()
        for number, body in enumerate(bodies):
            await asyncio.sleep(begun + number / attack.rate - time.perf_counter())
            if time.perf_counter() - begun > attack.seconds:
                break
            await places.acquire()
            group.create_task(_send(url, session, body, answers, places))
    return answers


async def _send(
    url: str, session: aiohttp.ClientSession, body: bytes, answers: Counter[int], places: asyncio.Semaphore
) -> None:
    try:
        headers = {"Content-Type": "application/json"}
        async with session.post(f"{url}/v1/completions", data=body, headers=headers) as response:
            await response.read()
            answers[response.status] += 1
    except (TimeoutError, aiohttp.ClientError):
        answers[NO_ANSWER] += 1
    finally:
        places.release()
