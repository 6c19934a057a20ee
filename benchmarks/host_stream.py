"""Measure how long the scheduling thread takes to send a decode step of 256 rows to other hosts, and the CPU time of
the threads that carry it. Followers are processes on this machine, with a device that does nothing.

`engine_share`: the share of a device that an engine of two hosts uses, of what a bare loop uses, as in overlap.py;
steps of the device take 5 ms, and the follower has such a device, too.

    python benchmarks/host_stream.py [--hosts N …] [--steps N] [--rounds N] [--json FILE]
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.call_stream import SHAPES, make_step
from benchmarks.overlap_parts.device import ChattyRunner, bare_rate, engine_rate, fill, make_core, make_runner
from benchmarks.report import write_json
from jaxinfer.engine.device.call_stream import CallWriter
from jaxinfer.engine.device.calls import Start
from jaxinfer.engine.device.follower import Follower
from jaxinfer.engine.device.leader import LeadingRunner
from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.step.plan import StepKind
from jaxinfer.hosts.following import HostFollower
from jaxinfer.hosts.leading import HostLeader

HOSTS = (2, 4)
ROWS = 256
STEP_SECONDS = 0.005
"""Between steps the thread sleeps, as it would wait for a device."""
FACTS = {"benchmark": "host_stream"}
DEVICE = (ROWS, STEP_SECONDS, 32_000)
"""Device of the engine whose share is measured: rows, seconds a step, vocabulary."""


class Row(NamedTuple):
    """Times for one number of hosts. send_us: to send a step's two messages, the median, the least and the 99th
    percentile. cpu_us: CPU time a step of all threads, writing the messages included. skew_ms: from the leader's
    collection until it hears of the slowest follower's, the median."""

    hosts: int
    send_us: tuple[float, float, float]
    cpu_us: float
    skew_ms: float


def follow(address: str, num_hosts: int, host_id: int, *, computes: bool) -> None:
    """A follower's process. computes: whether its steps take time."""
    runner = make_runner(*DEVICE) if computes else SimulatedRunner(SHAPES, draws=False)
    with HostFollower(num_hosts, host_id, FACTS, lost=print) as stream:
        stream.join(address)
        stream.run(Follower(runner))


@contextmanager
def followers(address: str, num_hosts: int, *, compute: bool = False) -> Iterator[None]:
    """Processes, until they end by themselves."""
    command = [sys.executable, __file__, "--follow", "computes" if compute else "idles", address, str(num_hosts)]
    running = [subprocess.Popen([*command, str(host_id)]) for host_id in range(1, num_hosts)]
    try:
        yield
        for process in running:
            process.wait(30)
    finally:
        for process in running:
            process.kill()


def time_steps(num_hosts: int, num_steps: int) -> Row:
    """Sends a decode step over and over."""
    step, writer = make_step(StepKind.DECODE, ROWS), CallWriter()
    leader = HostLeader(num_hosts, FACTS, lost=print)
    sends, skews, cpu = [], [], 0.0
    with followers(leader.listen("127.0.0.1:0"), num_hosts), leader:
        leader.wait_joined()
        leader.serve()
        for number in range(num_steps):
            began = time.process_time()
            message = writer.write(Start(step))
            start = time.perf_counter()
            leader.send(message)
            sends.append((time.perf_counter() - start) * 1e6)
            if number > 0:  # the step before, as with one step ahead
                leader.note_collected(number - 1)
            time.sleep(STEP_SECONDS)
            cpu += time.process_time() - began
            skews += [max(state.step_skew or 0.0 for state in leader.states()) * 1e3]
    percentiles = quantiles(sends, n=100)
    times = round(median(sends), 1), round(min(sends), 1), round(percentiles[98], 1)
    return Row(num_hosts, times, round(cpu / num_steps * 1e6, 1), round(median(skews), 2))


def engine_share(steps: int) -> dict[str, float]:
    """Tokens a second of a bare loop and of an engine whose steps a follower repeats, and the engine's share."""
    leader = HostLeader(2, FACTS, lost=print)
    devices: list[ChattyRunner] = []

    def leading(runner: Runner) -> LeadingRunner:
        assert isinstance(runner, ChattyRunner)
        devices.append(runner)
        return LeadingRunner(runner, leader.send, leader.note_collected)

    with followers(leader.listen("127.0.0.1:0"), 2, compute=True), leader:
        leader.wait_joined()
        leader.serve()
        core = make_core(*DEVICE, leading=leading)
        fill(core, ROWS)
        rate = engine_rate(core, steps)
        core.abort_all()
        while core.has_work():
            core.step()
        bare = bare_rate(core, steps, devices[0])
    return {"bare": bare, "engine": rate, "share": rate / bare}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", metavar="N", type=int, nargs="+", default=HOSTS, help="numbers of hosts")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--steps", type=int, default=1000, help="steps for each number of hosts")
    parser.add_argument("--rounds", type=int, default=3, help="times that the engine's share is measured")
    parser.add_argument("--follow", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow:
        how, address, num_hosts, host_id = options.follow
        return follow(address, int(num_hosts), int(host_id), computes=how == "computes")
    if options.steps < 2 or min(options.hosts) < 2:
        parser.error("--steps and --hosts must be at least 2")
    rows = [time_steps(number, options.steps) for number in options.hosts]
    print(f"{'hosts':>6} {'send µs':>8} {'least':>8} {'99 %':>8} {'CPU µs':>8} {'skew ms':>8}")
    for row in rows:
        print(f"{row.hosts:>6} {row.send_us[0]:8} {row.send_us[1]:8} {row.send_us[2]:8} {row.cpu_us:8} {row.skew_ms:8}")
    engine = [engine_share(options.steps) for _ in range(options.rounds)]
    shares = [row["share"] for row in engine]
    found: dict[str, Any] = {"rows": [row._asdict() for row in rows], "steps": options.steps, "batch": ROWS}
    write_json(options.json, found | {"engine": engine})
    last, share = rows[-1], f"{median(shares):.1%} ({min(shares):.1%}-{max(shares):.1%})"
    sent = f"sending a decode step of {ROWS} rows to {last.hosts - 1} hosts: {last.send_us[0]} µs (median)"
    print(f"{sent}; engine_share of two hosts {share}")
    return None


if __name__ == "__main__":
    main()
