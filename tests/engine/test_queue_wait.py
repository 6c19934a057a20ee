"""For how long requests wait for a slot: the estimate, the refusal of what would wait too long, the end of what has."""

import itertools

import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.scheduler.queue_wait import Deadlines, QueueWait, StepClock
from jaxinfer.engine.sequence import Status
from jaxinfer.engine.types import FinishReason, GenerateRequest
from jaxinfer.errors import QueueFullError
from jaxinfer.sampling import SamplingParams
from tests.engine.ledger import live_sequences
from tests.engine.small import small_core

SECOND = 10**9
NUMBERS = itertools.count()


class Clock:
    """Nanoseconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def request(
    *,
    tenant: tuple[str, ...] = (),
    tokens: int = 4,
    max_wait: float | None = None,
    max_expected_wait: float | None = None,
) -> GenerateRequest:
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    return GenerateRequest(
        str(next(NUMBERS)), [1, 2, 3], params, tenant=tenant, max_wait=max_wait, max_expected_wait=max_expected_wait
    )


def steps_of(core: EngineCore, clock: Clock, count: int, seconds: float = 1.0) -> dict[str, FinishReason]:
    """Run steps that take so long; how the requests ended that ended."""
    ended = {}
    for _ in range(count):
        for output in core.step():
            ended |= {delta.request_id: delta.finish_reason for delta in output.deltas if delta.finish_reason}
        clock.now += int(seconds * SECOND)
    return ended


def test_the_estimate_is_the_mean_interval_of_admissions_while_others_wait() -> None:
    clock = Clock()
    steps = StepClock(clock)
    wait = QueueWait(steps, slots=32)
    wait.planned(waiting=900, admitted=32)  # free slots are filled at once
    assert wait.estimate(900) == 0
    wait.planned(waiting=900, admitted=0)
    for left in range(899, 859, -1):
        clock.now += 2 * SECOND
        steps.advance()
        wait.planned(waiting=left, admitted=1)
    assert wait.estimate(9) == pytest.approx(20)
    for _ in range(40):
        clock.now += 2 * SECOND
        steps.advance()
        wait.planned(waiting=860, admitted=0)  # it takes longer now
    assert wait.estimate(9) == pytest.approx(40)
    wait.planned(waiting=0, admitted=860)
    assert wait.estimate(9) == 0


@pytest.mark.parametrize("a_step", [2, 3])
def test_requests_wait_about_as_long_as_estimated(a_step: int) -> None:
    """Of a saturated engine: the estimate for each newcomer, and when it got its slot."""
    clock = Clock()
    core = small_core(clock=clock, max_waiting=1000, fair_share="off")
    for _ in range(20):
        core.add_request(request())
    steps_of(core, clock, 20, 0.5)
    told: dict[str, tuple[int, float]] = {}
    waits: dict[str, float] = {}
    for number in itertools.count():
        for _ in range(a_step if number < 60 else 0):
            new, estimate = request(), core.stats().scheduler.expected_wait
            told[new.request_id] = clock.now, estimate
            core.add_request(new)
        steps_of(core, clock, 1, 0.5)
        for sequence in live_sequences(core):
            if sequence.request_id in told and sequence.scheduled_at is not None:
                waits[sequence.request_id] = (sequence.scheduled_at - told[sequence.request_id][0]) / SECOND
        if not core.has_work():
            break
    pairs = [(told[name][1], wait) for name, wait in waits.items() if wait > 8]
    assert len(pairs) > 20
    assert [(estimate, wait) for estimate, wait in pairs if not wait / 2 <= estimate <= 2 * wait] == []


def test_a_burst_refuses_nobody_before_the_pace_is_known() -> None:
    """Of an idle engine with long requests, to which all come at once: a slot's worth of them has to end first."""
    clock = Clock()
    wait = QueueWait(StepClock(clock), slots=256)
    wait.planned(waiting=744, admitted=256)
    for _ in range(49):  # requests of five seconds, planned every tenth of one
        clock.now += SECOND // 10
        wait.planned(waiting=744, admitted=0)
        assert wait.estimate(744) < 15
    wait.planned(waiting=488, admitted=256)
    assert wait.estimate(488) == pytest.approx(489 * 4.8 / 256)


def test_a_stall_is_no_part_of_the_estimate() -> None:
    clock = Clock()
    core = small_core(clock=clock, max_waiting=1000, fair_share="off")
    for _ in range(80):
        core.add_request(request())
    steps_of(core, clock, 20, 0.5)
    before = core.stats().scheduler.expected_wait
    clock.now += 120 * SECOND  # a program is compiled
    steps_of(core, clock, 4, 0.5)
    assert before / 2 <= core.stats().scheduler.expected_wait <= 2 * before


def test_an_overload_that_is_over_is_forgotten() -> None:
    clock = Clock()
    core = small_core(clock=clock, max_waiting=1000, fair_share="off")
    for _ in range(60):
        core.add_request(request())
    while core.has_work():
        steps_of(core, clock, 1)
    clock.now += 3600 * SECOND
    for _ in range(40):
        core.add_request(request(max_expected_wait=1))


@pytest.mark.parametrize("policy", ["priority", "sjf"])
def test_requests_that_may_pass_others_are_not_refused_by_their_number(policy: str) -> None:
    clock = Clock()
    core = small_core(clock=clock, max_waiting=1000, fair_share="off", scheduling_policy=policy)
    for _ in range(60):
        core.add_request(request())
    steps_of(core, clock, 10)
    assert core.stats().scheduler.expected_wait > 10
    core.add_request(request(max_expected_wait=1))


def test_what_has_ended_is_not_kept_until_its_time() -> None:
    clock = Clock()
    deadlines = Deadlines(StepClock(clock))
    core = small_core(max_waiting=1000, fair_share="off")
    for _ in range(500):
        core.add_request(request())
    for sequence in live_sequences(core):
        deadlines.add(sequence, 1e12)
        sequence.status = Status.FINISHED
    assert len(deadlines._due) <= 65


def test_a_compiler_or_a_stall_is_nobodys_wait() -> None:
    clock = Clock()
    core = small_core(clock=clock, fair_share="off")
    for _ in range(core.runner.shapes.max_num_seqs):
        core.add_request(request(tokens=12))
    waiting = request(max_wait=20)
    core.add_request(waiting)
    steps_of(core, clock, 1, 600)
    assert steps_of(core, clock, 3, 1) == {}
    assert set(steps_of(core, clock, 40, 0.1).values()) == {FinishReason.LENGTH}


def test_what_is_likely_to_wait_too_long_is_refused_at_once() -> None:
    clock = Clock()
    core = small_core(clock=clock, max_waiting=1000, fair_share="off")
    for _ in range(60):
        core.add_request(request())
    steps_of(core, clock, 10)
    wait = core.stats().scheduler.expected_wait
    assert wait > 10
    with pytest.raises(QueueFullError) as refused:
        core.add_request(request(max_expected_wait=wait / 2))
    assert wait <= refused.value.retry_after < wait + 1.5
    core.add_request(request(max_expected_wait=2 * wait))
    core.add_request(request(max_wait=wait / 2))  # which ends it when the time has come


def test_one_that_has_waited_as_long_as_it_may_ends_and_one_that_runs_does_not() -> None:
    clock = Clock()
    core = small_core(clock=clock, fair_share="off")
    running = [request(max_wait=3, tokens=8) for _ in range(core.runner.shapes.max_num_seqs)]
    late, patient = request(max_wait=3), request()
    for each in (*running, late, patient):
        core.add_request(each)
    ended = steps_of(core, clock, 3)
    assert ended == {}
    ended = steps_of(core, clock, 1)
    assert ended == {late.request_id: FinishReason.TIMEOUT}
    ended = steps_of(core, clock, 40)
    assert set(ended.values()) == {FinishReason.LENGTH}
    assert len(ended) == len(running) + 1
    assert not core.has_work()


def test_a_tenant_waits_for_its_share_alone() -> None:
    clock = Clock()
    core = small_core(clock=clock, max_waiting=1000, fair_share="key")
    for _ in range(60):
        core.add_request(request(tenant=("flood",)))
    steps_of(core, clock, 10)
    with pytest.raises(QueueFullError):
        core.add_request(request(max_expected_wait=10, tenant=("flood",)))
    core.add_request(request(max_expected_wait=10, tenant=("other",)))
