"""How the engine tells what its time goes into, and why requests wait."""

import threading

from jaxinfer.engine.client.local import LocalEngineClient
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.stats.step_timer import APPLY, CONSTRAIN, DISPATCH, IDLE, OTHER, SCHEDULE, WAIT, StepTimer
from tests.engine.small import RecordingRunner, ask, run, small_core, small_shapes
from tests.engine.stepping import step_deltas

PARTS = ("schedule", "dispatch", "constrain", "wait", "apply", "other", "idle")


def test_every_nanosecond_belongs_to_a_part_and_flies_starves_or_idles() -> None:
    now = 0
    timer = StepTimer(lambda: now)
    passed = dict(enumerate([3, 5, 7, 11, 13, 17, 19]))
    for part, nanoseconds in passed.items():
        timer.in_flight = part == WAIT
        now += nanoseconds * 10**9
        timer.end(part)
    parts = (SCHEDULE, DISPATCH, CONSTRAIN, WAIT, APPLY, OTHER, IDLE)
    assert [round(timer.seconds(part)) for part in parts] == [*passed.values()]
    assert round(timer.in_flight_seconds) == passed[WAIT]
    assert round(timer.starved_seconds) == sum(passed.values()) - passed[WAIT] - passed[IDLE]


def test_waiting_for_a_slow_device_is_waiting_and_the_device_is_busy() -> None:
    runner = SimulatedRunner(small_shapes(), step_seconds=0.02)
    core = small_core(runner)
    core.add_request(ask("a", 5, 20))
    run(core)
    core.close()
    stats = core.stats()
    assert stats.time.wait_seconds > 0.6 * stats.core.steps * 0.02
    assert stats.time.in_flight_seconds >= stats.time.wait_seconds
    spent = sum(getattr(stats.time, f"{part}_seconds") for part in PARTS)
    assert abs(spent - stats.time.in_flight_seconds - stats.time.starved_seconds) < 1e-6


async def test_a_thread_without_requests_is_idle() -> None:
    gate = threading.Event()
    core = small_core()
    client = LocalEngineClient(core)
    try:
        gate.wait(0.1)
        async for _ in await client.submit(ask("a", 5, 3)):
            pass
        assert client.stats().time.idle_seconds >= 0.09
        assert client.stats().time.starved_seconds < client.stats().time.idle_seconds
    finally:
        await client.close()


def reasons(core) -> tuple[int, int, int, int]:
    stats = core.stats().scheduler
    told = stats.waiting_for_slots, stats.waiting_for_blocks, stats.waiting_for_prefills, stats.waiting_for_step
    assert sum(told) == stats.waiting
    return told


def reasons_until_the_end(core) -> set[tuple[int, int, int, int]]:
    seen = set()
    while core.has_work():
        step_deltas(core)
        seen.add(reasons(core))
    return seen


def test_requests_wait_for_a_step_then_for_slots() -> None:
    core = small_core(RecordingRunner(small_shapes(max_num_seqs=2)))
    for i in range(5):
        core.add_request(ask(f"r{i}", 3, 8, n=1))
    assert reasons(core) == (0, 0, 0, 5)
    step_deltas(core)
    assert reasons(core) == (3, 0, 0, 0)
    run(core)
    assert reasons(core) == (0, 0, 0, 0)


def test_requests_wait_for_blocks() -> None:
    core = small_core(RecordingRunner(small_shapes(blocks=13)))
    for i in range(4):
        core.add_request(ask(f"r{i}", 20, 4))
    seen = reasons_until_the_end(core)
    assert (0, 2, 0, 0) in seen
    assert not any(slots or prefills for slots, _, prefills, _ in seen)


def test_long_prompts_are_deferred_while_others_are_half_computed() -> None:
    core = small_core(RecordingRunner(small_shapes(100)), max_num_partial_prefills=1)
    for i in range(3):
        core.add_request(ask(f"long{i}", 40, 2))
    seen = reasons_until_the_end(core)
    assert (0, 0, 2, 0) in seen


def test_idle_time_grows_while_the_thread_waits() -> None:
    now = [0]
    timer = StepTimer(lambda: now[0])
    now[0] = 3_000_000_000
    timer.wait()
    now[0] = 5_000_000_000
    assert (timer.seconds(OTHER), timer.seconds(IDLE)) == (3.0, 2.0)
    timer.end(IDLE)
    now[0] = 9_000_000_000
    assert (timer.seconds(OTHER), timer.seconds(IDLE)) == (3.0, 2.0)
