"""Who is served, who waits and who gives way, under each policy."""

import random
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.sequence import Sequence, Status
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.errors import ParameterError
from tests.engine.ledger import check_blocks, live_names, live_sequences
from tests.engine.small import (
    Got,
    RecordingRunner,
    ask,
    right,
    run,
    sequence_of,
    small_core,
    small_shapes,
    step,
    tokens_of,
)
from tests.engine.stepping import step_deltas

SECOND = 10**9
POLICIES: dict[str, dict[str, Any]] = {
    "fcfs": {"scheduling_policy": "fcfs"},
    "priority": {"scheduling_policy": "priority", "priority_ageing_seconds": 3.0},
    "strict": {"scheduling_policy": "priority", "priority_ageing_seconds": 0.0},
    "sjf": {"scheduling_policy": "sjf", "sjf_tokens_per_second": 5.0},
    "strict_sjf": {"scheduling_policy": "shortest_job_first", "sjf_tokens_per_second": 0.0},
}


def key(policy: str, seconds: float, number: int, priority: int, prompt: int) -> tuple[float, ...]:
    """Who comes first, from the definitions: seconds is the time of arrival, number its order."""
    return {
        "fcfs": (number,),
        "priority": (seconds + 3 * priority, number),
        "strict": (priority, number),
        "sjf": (seconds + prompt / 5, number),
        "strict_sjf": (prompt, number),
    }[policy]


class Clock:
    """Time that a test moves, nanoseconds."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Load:
    """Requests that come at random to an engine with few slots; checks every decision against `key`."""

    def __init__(self, policy: str, seed: int, *, blocks: int, ahead: int):
        self.policy = policy
        self.clock = Clock()
        runner = RecordingRunner(small_shapes(blocks, max_num_seqs=3))
        self.core = small_core(
            runner, ahead=ahead, caching=False, watermark=0.0, clock=self.clock, max_waiting=500, **POLICIES[policy]
        )
        self.draw = random.Random(seed)
        self.requests: dict[str, GenerateRequest] = {}
        self.keys: dict[str, tuple[float, ...]] = {}
        self.got: Got = {}
        self.preempted: list[Sequence] = []
        preempt = self.core.scheduler.state.preempt

        def checked(sequence: Sequence) -> None:
            running = self.core.scheduler.state.running
            assert self.core.scheduler.state.in_flight == 0
            assert sequence is max(running, key=lambda other: (*self.keys[other.request_id], other.index))
            self.preempted.append(sequence)
            preempt(sequence)

        self.core.scheduler.state.preempt = checked  # type: ignore[method-assign]

    def add(self) -> None:
        number = len(self.requests)
        prompt, n = self.draw.choice([3, 5, 9, 14, 22]), self.draw.choice([1, 1, 1, 3])
        priority = self.draw.randint(-3, 3) if self.core.scheduler.policy.uses_priority else 0
        request = replace(ask(f"r{number}", prompt, self.draw.randint(1, 9), n=n, seed=number), priority=priority)
        self.requests[request.request_id] = request
        self.keys[request.request_id] = key(self.policy, self.clock.now / SECOND, number, priority, prompt)
        self.core.add_request(request)

    def step(self) -> None:
        self.clock.now += SECOND
        self.preempted.clear()
        before = {id(sequence): sequence.status for sequence in live_sequences(self.core)}
        step(self.core, self.got)
        check_blocks(self.core)
        assert all(sequence.slot < 0 for sequence in self.preempted), (
            "a victim was resumed by the plan that preempted it"
        )
        entered = [
            self._place(sequence)
            for sequence in live_sequences(self.core)
            if sequence.slot >= 0 and before.get(id(sequence)) is Status.WAITING
        ]
        left = [sequence for sequence in live_sequences(self.core) if sequence.status is Status.WAITING]
        waiting = [
            self._place(sequence) for sequence in left if sequence not in self.preempted and id(sequence) in before
        ]
        if entered and waiting:
            assert max(entered) < min(waiting), "somebody was passed"

    def _place(self, sequence: Sequence) -> tuple[float, ...]:
        return (*self.keys[sequence.request_id], sequence.index)


@pytest.mark.few(10)
@pytest.mark.parametrize("blocks", [100, 13], ids=["slots", "blocks"])
@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_order_under_load(policy: str, ahead: int, blocks: int) -> None:
    """With forks, aborts while waiting, and preemption for slots (`priority`) or for blocks (all)."""
    preemptions = 0
    for seed in range(3):
        load = Load(policy, seed, blocks=blocks, ahead=ahead)
        aborted = set()
        for round_ in range(60):
            if round_ < 40 and load.draw.random() < 0.6:
                load.add()
            alive = live_names(load.core)
            if alive and load.draw.random() < 0.1:
                aborted.add(load.draw.choice(alive))
                load.core.abort(max(aborted, key=alive.__contains__))
            load.step()
        run(load.core, load.got)
        preemptions += load.core.stats().scheduler.preemptions
        for name, request in load.requests.items():
            for index in range(request.sampling.n):
                found, wanted = tokens_of(load.got[name, index]), right(load.core, request, index)
                assert found == (wanted[: len(found)] if name in aborted else wanted)
    assert bool(preemptions) == (blocks == 13 or policy in ("priority", "strict"))


def test_ties_go_by_arrival() -> None:
    for policy in ("priority", "sjf"):
        core = small_core(RecordingRunner(small_shapes(max_num_seqs=1)), clock=Clock(), **POLICIES[policy])
        for name in "abcd":
            core.add_request(ask(name, 5, 2))
        assert [name for name, _ in run(core)] == list("abcd")


def slots(count: int, ahead: int, policy: str, clock: Clock | None = None) -> EngineCore:
    runner = RecordingRunner(small_shapes(100, max_num_seqs=count))
    return small_core(runner, ahead=ahead, clock=clock or Clock(), **POLICIES[policy])


def with_priority(name: str, priority: int, prompt: int = 5, tokens: int = 12) -> GenerateRequest:
    return replace(ask(name, prompt, tokens), priority=priority)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_better_requests_take_the_slots_of_the_worst(ahead: int) -> None:
    core, got = slots(3, ahead, "strict"), {}
    requests = [with_priority(name, priority) for name, priority in (("worst", 9), ("good", 1), ("bad", 5))]
    for request in requests:
        core.add_request(request)
    for _ in range(4):
        step(core, got)
    better = [with_priority("best", -1), with_priority("better", 0), with_priority("medium", 6)]
    for request in better:
        core.add_request(request)
    for _ in range(3):
        step(core, got)
    assert {request.request_id for request in core.scheduler.state.running} == {"best", "better", "good"}
    assert core.stats().scheduler.preemptions == 2
    run(core, got)
    assert core.stats().scheduler.preemptions == 2
    assert list(dict.fromkeys(name for name, _ in got if name in ("medium", "best"))) == ["best", "medium"]
    for request in requests + better:
        assert tokens_of(got[request.request_id, 0]) == right(core, request)


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "strict_sjf"])
def test_other_policies_take_no_slots(policy: str) -> None:
    core = slots(1, 0, policy)
    core.add_request(ask("long", 40, 5))
    step_deltas(core)
    core.add_request(ask("short", 3, 5))
    run(core)
    assert core.stats().scheduler.preemptions == 0


def test_who_has_waited_long_keeps_its_slot() -> None:
    """Three seconds are worth a level: after four, a request one level better no longer outranks it."""
    clock = Clock()
    core, got = slots(1, 0, "priority", clock), {}
    core.add_request(with_priority("old", 1, tokens=20))
    step(core, got)
    clock.now = 4 * SECOND
    core.add_request(with_priority("level better", 0))
    step(core, got)
    assert core.stats().scheduler.preemptions == 0
    core.add_request(with_priority("two levels better", -1))
    step(core, got)
    assert core.stats().scheduler.preemptions == 1
    run(core, got)
    ends = [name for name, _ in sorted(got, key=lambda key: len(got[key]))]
    assert set(ends) == {"old", "level better", "two levels better"}


def test_a_better_request_gets_the_blocks_of_worse_ones() -> None:
    core = small_core(
        RecordingRunner(small_shapes(blocks=13)), caching=False, watermark=0.0, clock=Clock(), **POLICIES["strict"]
    )
    got: Got = {}
    for name in ("a", "b"):
        core.add_request(with_priority(name, 5, prompt=15, tokens=8))
    while not got.get(("b", 0)):
        step(core, got)
    core.add_request(with_priority("best", 0, prompt=24, tokens=4))
    while sequence_of(core, "best").slot < 0:
        step(core, got)
    assert sequence_of(core, "a").slot >= 0
    assert sequence_of(core, "b").slot == -1
    assert core.stats().scheduler.preemptions == 1
    run(core, got)
    assert tokens_of(got["b", 0]) == right(core, with_priority("b", 5, prompt=15, tokens=8))


def test_a_victim_is_not_resumed_by_the_plan_that_preempted_it() -> None:
    """Though most of its blocks are left over."""
    core = small_core(
        RecordingRunner(small_shapes(blocks=13)), caching=False, watermark=0.0, clock=Clock(), **POLICIES["strict"]
    )
    got: Got = {}
    core.add_request(with_priority("top", -9, prompt=12, tokens=8))
    core.add_request(with_priority("worse", 5, prompt=30, tokens=3))
    while not got.get(("worse", 0)):
        step(core, got)
    core.add_request(with_priority("small", 0, prompt=3, tokens=2))
    while sequence_of(core, "small").slot < 0:
        step(core, got)
    assert sequence_of(core, "worse").slot == -1
    assert core.scheduler.state.kv.pools[0].num_free > 3
    step(core, got)
    assert sequence_of(core, "worse").slot >= 0
    run(core, got)


def test_nobody_gives_way_where_it_would_not_help() -> None:
    """A worse request holds two blocks; the better one needs more than those and what is free."""
    core = small_core(
        RecordingRunner(small_shapes(blocks=12)), caching=False, watermark=0.0, clock=Clock(), **POLICIES["strict"]
    )
    got: Got = {}
    core.add_request(with_priority("top", -9, prompt=28, tokens=4))
    core.add_request(with_priority("worse", 5, prompt=5, tokens=3))
    for _ in range(2):
        step(core, got)
    core.add_request(with_priority("big", 0, prompt=17, tokens=3))
    step(core, got)
    assert sequence_of(core, "worse").slot >= 0
    run(core, got)
    assert core.stats().scheduler.preemptions == 0


class Steady(SimulatedRunner):
    """Two requests of two tokens a step, whatever they hold."""

    def __init__(self) -> None:
        super().__init__(small_shapes(200, max_num_seqs=4), draws=False)


def starts(policy: dict[str, Any], requests: int) -> tuple[dict[str, float], dict[str, tuple[float, int]]]:
    """Serves a steady overload, one in fifty of low priority: seconds of first tokens; arrival and priority."""
    clock = Clock()
    core = small_core(Steady(), clock=clock, max_waiting=requests, **policy)
    came: dict[str, tuple[float, int]] = {}
    first: dict[str, float] = {}
    tick = SECOND // 100
    while len(came) < requests or core.has_work():
        # Ten arrive while eight can be served.
        for _ in range(5 if (clock.now // tick) % 2 else 0):
            if len(came) < requests:
                name = str(len(came))
                came[name] = (clock.now / SECOND, 3 if len(came) % 50 == 0 else 0)
                core.add_request(with_priority(name, came[name][1], prompt=3, tokens=2))
        clock.now += tick
        for delta in step_deltas(core):
            first.setdefault(delta.request_id, clock.now / SECOND)
    return first, came


def bounds(came: dict[str, tuple[float, int]], ageing: float) -> dict[str, float]:
    """When a low request must have started: once all with an earlier deadline were served, 200 a second."""
    deadline = {name: at + priority * ageing for name, (at, priority) in came.items()}
    order = sorted(deadline, key=lambda name: (deadline[name], int(name)))
    before = {name: i for i, name in enumerate(order)}
    return {name: max(came[name][0], before[name] / 200) + 0.1 for name in came if came[name][1]}


@pytest.mark.long
def test_nothing_starves_under_priority_with_ageing() -> None:
    ageing = 2.0
    first, came = starts({"scheduling_policy": "priority", "priority_ageing_seconds": ageing}, 10_000)
    late = {name: first[name] - bound for name, bound in bounds(came, ageing).items()}
    assert len(late) == 200
    assert max(late.values()) <= 0
    # It is not first come, first served either: those of high priority wait less.
    low, high = ([first[name] - at for name, (at, priority) in came.items() if priority == p] for p in (3, 0))
    assert mean(low) > 1.3 * mean(high)


def test_without_ageing_low_priority_starves() -> None:
    """The same load breaks the bound that ageing keeps: so the test above can fail."""
    first, came = starts({"scheduling_policy": "priority", "priority_ageing_seconds": 0.0}, 3_000)
    last_arrival = max(at for at, _ in came.values())
    low = [name for name, (at, priority) in came.items() if priority and at > 1.0]
    assert low
    assert all(first[name] > last_arrival for name in low)
    assert max(first[name] - bound for name, bound in bounds(came, 2.0).items()) > 1.0


@pytest.mark.parametrize(("rate", "last"), [(0.0, True), (1000.0, False)])
def test_long_prompts_do_not_starve_under_sjf(rate: float, last: bool) -> None:
    """A long prompt of 40 tokens among short ones of 3 that come faster than they are served."""
    clock = Clock()
    core = small_core(
        RecordingRunner(small_shapes(max_num_seqs=1)),
        clock=clock,
        max_waiting=500,
        scheduling_policy="sjf",
        sjf_tokens_per_second=rate,
    )
    core.add_request(ask("first", 3, 2))
    core.add_request(ask("long", 40, 2))
    got: Got = {}
    for i in range(200):
        core.add_request(ask(f"s{i}", 3, 2))
        clock.now += SECOND // 100
        step(core, got)
    run(core, got)
    order = [name for name, _ in got]
    assert (order.index("long") == len(order) - 1) is last
    # 37 tokens more are worth 37 ms, in which four short ones come.
    assert last or order.index("long") <= 1 + 4


def test_sjf_counts_what_is_not_cached() -> None:
    core = slots(1, 0, "strict_sjf")
    conversation = [*range(1, 33)]
    core.add_request(ask("turn", conversation, 2))
    run(core)
    core.add_request(ask("busy", 3, 8))
    step_deltas(core)
    core.add_request(ask("fresh", 12, 2))
    core.add_request(ask("next turn", [*conversation, 40, 41], 2))
    assert [name for name, _ in run(core)] == ["busy", "next turn", "fresh"]


@pytest.mark.parametrize("policy", ["fcfs", "sjf"])
def test_a_priority_is_refused_where_it_would_be_ignored(policy: str) -> None:
    with pytest.raises(ParameterError, match="priority"):
        slots(1, 0, policy).add_request(with_priority("r", 1))
    core = slots(1, 0, "priority")
    with pytest.raises(ParameterError, match="out of range"):
        core.add_request(with_priority("r", 2**31))
    core.add_request(with_priority("r", 1 - 2**31))


def test_a_resumed_request_keeps_its_rank() -> None:
    for policy in POLICIES:
        clock = Clock()
        core, got = slots(2, 1, policy, clock), {}
        core.add_request(ask("r", 9, 20, n=2))
        for _ in range(4):
            clock.now += SECOND
            step(core, got)
        ranks = {sequence.index: sequence.rank for sequence in live_sequences(core)}
        assert [rank[-1] for rank in ranks.values()] == list(ranks)
        core.scheduler.state.preempt(sequence_of(core, "r", 1))
        core.add_request(ask("later", 4, 3))
        clock.now += SECOND
        step(core, got)
        assert sequence_of(core, "r", 1).rank == ranks[1]
        run(core, got)
