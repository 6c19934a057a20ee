"""Several shards: nobody waits while a shard that could take it has room, or what a worse one holds there."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.sequence import Sequence, Status
from jaxinfer.engine.step.plan import StepPlan
from jaxinfer.engine.types import GenerateRequest
from tests.engine.ledger import check_blocks, check_slots, live_sequences
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

BUDGET, BLOCK = 16, 4
PATIENCE = 5
"""Plans in which one that waits outranks one that runs: a failure comes first, and forks give up blocks one a plan."""


def core_of(policy: str = "fcfs", ahead: int = 0, shards: int = 2, **changes: Any) -> EngineCore:
    options: dict[str, Any] = {"scheduling_policy": policy}
    if policy == "priority":
        options["priority_ageing_seconds"] = 0.0
    return small_core(RecordingRunner(small_shapes(shards=shards, **changes)), ahead=ahead, watermark=0.0, **options)


def with_priority(name: str, priority: int, prompt: int, tokens: int, n: int = 1) -> GenerateRequest:
    return replace(ask(name, prompt, tokens, n=n), priority=priority)


def occupied(core: EngineCore) -> list[int]:
    """Running sequences by shard."""
    running = core.scheduler.state.running
    return np.bincount([sequence.kv.shard for sequence in running], minlength=core.runner.shapes.shards).tolist()


def steps_until_running(core: EngineCore, name: str) -> int:
    for number in range(100):
        if any(sequence.slot >= 0 for sequence in live_sequences(core, name)):
            return number
        step(core, {})
    raise AssertionError(f"{name} never runs")


def test_a_shard_whose_budget_was_spent_is_tried_in_the_next_step() -> None:
    """A sequence had found too few blocks in one shard, and waited for those though the other had plenty."""
    core = core_of(max_model_len=156)
    core.add_request(ask("fills shard 0", 142, 14))
    for _ in range(10):
        step(core, {})
    core.add_request(ask("spends the budget of shard 1 twice", 33, 60))
    step(core, {})
    core.add_request(ask("head", 16, 2))
    assert steps_until_running(core, "head") <= 2
    assert sequence_of(core, "head").kv.shard == 1


def test_a_shard_that_lacks_blocks_is_not_matched_again_in_every_step() -> None:
    core = core_of(blocks=10)
    matched: list[tuple[int, str]] = []
    match, state = core.scheduler.state.match, core.scheduler.state

    def counting(sequence: Sequence) -> int:
        matched.append((sequence.kv.shard, sequence.request_id))
        return match(sequence)

    state.match = counting  # type: ignore[method-assign]
    for name in ("zero", "one"):
        core.add_request(ask(name, 23, 12))
    for _ in range(3):
        step(core, {})
    core.add_request(ask("waits", 16, 4))
    for _ in range(6):
        step(core, {})
    assert sorted(entry for entry in matched if entry[1] == "waits") == [(0, "waits"), (1, "waits")]


def test_a_fork_of_a_full_shard_holds_up_nobody_and_gets_the_next_slot() -> None:
    core, got = core_of(blocks=60, copy_blocks=4, max_scored=8), {}
    many = ask("many", 3, 20, n=4)
    for request in (ask("other", 20, 20), ask("beside", 3, 20), many):
        core.add_request(request)
        step(core, got)
    step(core, got)
    (waiting,) = (sequence for sequence in live_sequences(core, "many") if sequence.slot < 0)
    assert occupied(core) == [1, 4]
    core.add_request(ask("late", 3, 8))
    step(core, got)
    assert sequence_of(core, "late").kv.shard == 0
    assert sequence_of(core, "late").slot >= 0
    assert waiting.slot < 0
    assert core.stats().scheduler.waiting_for_slots == 1
    core.add_request(ask("later", 3, 8))
    core.abort("beside")
    step(core, got)
    assert waiting.slot >= 0
    run(core, got)
    for index in range(4):
        assert tokens_of(got["many", index]) == right(core, many, index)


def test_better_forks_take_the_slots_of_their_own_shard() -> None:
    core = core_of("priority")
    for number in range(7):
        core.add_request(with_priority(f"low{number}", 10 + number, 3, 40))
    step(core, {})
    assert occupied(core) == [4, 3]
    core.add_request(with_priority("best", -10, 9, 30, n=4))
    for _ in range(3):
        step(core, {})
    best = live_sequences(core, "best")
    assert [sequence.slot >= 0 for sequence in best] == [True] * 4
    assert {sequence.kv.shard for sequence in best} == {1}
    assert occupied(core) == [4, 4]


def test_a_better_request_takes_slot_and_blocks_where_they_cost_least() -> None:
    """Shard 0 has a slot, and its blocks belong to a better request; shard 1 is full of worse ones."""
    core = core_of("priority", max_num_seqs=2, max_model_len=156)
    core.add_request(with_priority("best", -20, 142, 14))
    for _ in range(9):
        step(core, {})
    for name in ("bad", "worst"):
        core.add_request(with_priority(name, 20 + len(name), 3, 40))
    for _ in range(2):
        step(core, {})
    assert occupied(core) == [1, 2]
    core.add_request(with_priority("good", 0, 16, 3))
    assert steps_until_running(core, "good") <= 2
    assert sequence_of(core, "worst").slot < 0
    assert core.stats().scheduler.preemptions == 1


def test_waiting_forks_give_up_blocks_of_a_shard_where_nobody_runs() -> None:
    """They once kept them from a better request for as long as another shard had work."""
    core = core_of("priority", max_num_seqs=2, blocks=12)
    core.add_request(with_priority("best", -9, 30, 13))
    for _ in range(3):
        step(core, {})
    core.add_request(with_priority("beside", 5, 3, 30))
    core.add_request(with_priority("many", 6, 33, 8, n=2))
    while len(live_sequences(core, "many")) < 2:
        step(core, {})
    step(core, {})
    assert [sequence.slot >= 0 for sequence in live_sequences(core, "many")] == [True, False]
    core.add_request(with_priority("good", 0, 16, 3))
    core.abort("beside")
    core.stop("many", 0)
    assert steps_until_running(core, "good") <= 2
    assert sequence_of(core, "best").slot >= 0
    run(core)


class Load:
    """Requests that come at random; after every plan, everybody that waits is asked why."""

    def __init__(self, policy: str, seed: int, *, blocks: int, shards: int):
        sizes = {"blocks": blocks, "max_num_seqs": 4, "max_scored": BUDGET, "copy_blocks": BUDGET}
        self.core = core_of(policy, shards=shards, **sizes)
        self.draw = random.Random(seed)
        self.requests: dict[str, GenerateRequest] = {}
        self.got: Got = {}
        self.passed = 0
        self._waited_for_worse: dict[int, int] = {}
        schedule = self.core.scheduler.schedule

        def checked() -> StepPlan | None:
            preemptions = self.core.stats().scheduler.preemptions
            plan = schedule()
            # Nobody enters by a plan that preempts, or is short of blocks.
            undisturbed = self.core.stats().scheduler.preemptions == preemptions
            if plan and not self.core.scheduler.state.must_drain and undisturbed:
                self._check(plan)
            return plan

        self.core.scheduler.schedule = checked  # type: ignore[method-assign]

    def add(self) -> None:
        name, n = f"r{len(self.requests)}", self.draw.choice([1, 1, 1, 2, 4])
        priority = self.draw.randint(-3, 3) if self.core.scheduler.policy.uses_priority else 0
        prompt, tokens = self.draw.choice([3, 5, 9, 14, 22]), self.draw.randint(1, 20)
        self.requests[name] = with_priority(name, priority, prompt, tokens, n)
        self.core.add_request(self.requests[name])

    def step(self) -> None:
        step(self.core, self.got)
        check_blocks(self.core)
        check_slots(self.core)

    def _check(self, plan: StepPlan) -> None:
        """Asserts of each, up to the first that is no fork, that it has room nowhere, and nothing to take for long."""
        state = self.core.scheduler.state
        rows = state.table.shards_of(plan.slots)
        spent = np.bincount(rows, plan.counts, minlength=len(state.kv_shards)).tolist()
        shards, waits = set(range(len(spent))), {}
        for sequence in self._waiting():
            own = shards & {sequence.kv.shard} if sequence.is_waiting_fork else shards
            need = 1 if sequence.is_waiting_fork else -(-sequence.num_known // BLOCK)  # what is cached included
            room = [s for s in own if state.table.free_in(s) and state.kv_shards[s].available() >= need]
            assert all(spent[shard] == BUDGET for shard in room), "it waits though there is room"
            if not room and any(self._could_take(sequence, shard, need) for shard in own if spent[shard] < BUDGET):
                waits[id(sequence)] = self._waited_for_worse.get(id(sequence), 0) + 1
            if not sequence.is_waiting_fork:
                break
            shards.discard(sequence.kv.shard)  # what is left there is the fork's
            self.passed += 1
        assert max(waits.values(), default=0) <= PATIENCE, "it waits for what worse ones hold"
        self._waited_for_worse = waits

    def _could_take(self, sequence: Sequence, shard: int, need: int) -> bool:
        """Whether worse sequences of a shard have a slot and enough blocks that they share with nobody."""
        state = self.core.scheduler.state
        pool = state.kv_shards[shard].pools[0]
        worse = [other for other in state.running if other.kv.shard == shard and other.rank > sequence.rank]
        blocks = sum(pool.references(block) == 1 for other in worse for block in other.kv.blocks[0])
        return self.core.scheduler.policy.preempts and bool(worse) and pool.num_available + blocks >= need

    def _waiting(self) -> list[Sequence]:
        """In rank order."""
        waiting = [sequence for sequence in live_sequences(self.core) if sequence.status is Status.WAITING]
        return sorted(waiting, key=lambda sequence: sequence.rank)


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize(("blocks", "shards"), [(100, 2), (14, 2), (20, 3)])
def test_nobody_waits_for_what_is_free_or_a_worse_one_holds(policy: str, blocks: int, shards: int) -> None:
    passed = preemptions = 0
    for seed in range(8):
        load = Load(policy, seed, blocks=blocks, shards=shards)
        for number in range(80):
            if number < 50 and load.draw.random() < 0.3 * shards:
                load.add()
            load.step()
        run(load.core, load.got)
        passed, preemptions = passed + load.passed, preemptions + load.core.stats().scheduler.preemptions
        for name, request in load.requests.items():
            for index in range(request.sampling.n):
                assert tokens_of(load.got[name, index]) == right(load.core, request, index)
    assert passed > 20
    assert preemptions or (policy == "fcfs" and blocks == 100)
