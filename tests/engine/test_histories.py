"""Random histories on the simulated device, against a model of the rules."""

import random
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.scheduler import stage_rows
from jaxinfer.engine.step.builder import PlanBuilder
from jaxinfer.engine.step.plan import StepPlan
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.types import FinishReason, GenerateRequest
from jaxinfer.speculation import Speculation
from tests.draws import history_settings, random_cases, run_state_machines
from tests.engine.faulty import FAULTS, FaultAt, FaultyRunner
from tests.engine.followed import FailingCalls, Followed
from tests.engine.histories import Histories, is_dead_end
from tests.engine.ledger import live_names
from tests.engine.outputs import Output
from tests.engine.rules_model import RULES
from tests.engine.small import VOCABULARY, right, small_core
from tests.engine.toy_grammar import Toy, ToyConstraints
from tests.turns import one_of

EOS = (7,)
CONTEXT = 48
Machine = TypeVar("Machine", bound="SimulatedHistories")


class SimulatedHistories(Histories):
    """On the simulated device, whose tokens follow from the rules alone; steps fail."""

    @initialize(
        windows=st.sampled_from([(None,), (5,), (None, 5), (11, None)]),
        blocks=st.integers(14, 40),
        budget=st.sampled_from([4, 7, 16]),
        ahead=st.sampled_from([0, 1, 2, 3, 4, 5]),
        caching=st.booleans(),
        chunk=st.sampled_from([None, 1, 3]),
        policy=st.sampled_from(["fcfs", "priority", "sjf"]),
        partial=st.sampled_from([None, 1, 2]),
        kept=st.sampled_from([None, 0, 10, 30]),
        decode_steps=st.sampled_from([1, 1, 2, 5]),
        drafts=st.sampled_from([0, 0, 1, 4]),
        shards=st.sampled_from([1, 1, 2, 3]),
        stages=st.sampled_from([1, 1, 2, 4]),
    )
    def start(
        self, windows, blocks, budget, ahead, caching, chunk, policy: Any = "fcfs", partial=None, kept=None,
        decode_steps=1, drafts=0, retries=2, shards=1, stages=1,
    ) -> None:  # fmt: skip
        decode_steps = decode_steps if stages == 1 else 1
        kept = kept if caching else None
        self.now = self.dead_ends = 0
        groups = tuple(KVGroup(window, blocks) for window in windows)
        self.runner = self.make_runner(
            EngineShapes(
                4,
                budget,
                4,
                CONTEXT,
                4,
                groups,
                VOCABULARY,
                admit_slots=2,
                copy_blocks=2,
                decode_steps=1 if drafts else decode_steps,
                drafting=Speculation(drafts, 1, 1) if drafts else None,
                shards=shards,
                stages=stages,
            )
        )
        core = small_core(
            self.runner,
            ahead=ahead,
            eos=EOS,
            caching=caching,
            kept=kept,
            clock=lambda: self.now,
            scheduling_policy=policy,
            long_prefill_token_threshold=chunk,
            max_num_partial_prefills=partial,
            max_step_retries=retries,
            constraints=ToyConstraints(VOCABULARY),
        )
        if core.scheduler.drafts is not None and ahead % 2:
            numbers, policy = random.Random(blocks), core.scheduler.drafts
            policy.drafts = lambda *_: numbers.randint(0, drafts)
        self.begin(core, eos=EOS, retries=retries, partial=partial, kept=kept)

    def make_runner(self, shapes: EngineShapes) -> Any:
        return FaultyRunner(shapes, hit_rate=0.6)

    @rule(at=st.sampled_from(FAULTS))
    def fault(self, at: FaultAt) -> None:
        self.runner.fail_once(at)

    def step_once(self) -> None:
        self.now += 4 * 10**9
        super().step_once()

    def failed(self) -> bool:
        """Whether any sequence ended with an error that no rules of its own made."""
        return any(
            output.reason is FinishReason.ERROR and not is_dead_end(output.error) for output in self.outputs.values()
        )

    def check_tokens(self, request: GenerateRequest, index: int, output: Output) -> None:
        expected, dead_end = right(self.core, request, index), is_dead_end(output.error)
        if not request.sampling.ignore_eos:
            expected = _to_stop(expected)
        early = (request.request_id, index) in self.interrupted or output.reason is FinishReason.ERROR
        if early and not dead_end:
            expected = expected[: len(output.tokens)]
        self.dead_ends += dead_end
        assert output.tokens == expected


class FollowedHistories(SimulatedHistories):
    """With a second device, which repeats the first one's calls by their messages. Any call may fail."""

    def make_runner(self, shapes: EngineShapes) -> Any:
        self.device = FailingCalls(SimulatedRunner(shapes, hit_rate=0.6))
        self.followed = Followed(self.device, SimulatedRunner(shapes, hit_rate=0.6))
        return self.followed.leader

    @rule(at=st.sampled_from(FAULTS))
    def fault(self, at: FaultAt) -> None:
        self.device.fail_once(at, after=self.made % 5)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "core"):
            self.followed.check()


def _to_stop(tokens: list[int]) -> list[int]:
    for i, token in enumerate(tokens):
        if token in EOS:
            return tokens[: i + 1]
    return tokens


def _run_seeded(seed: int, operations: int = 60, faults: float = 0, **options: Any) -> SimulatedHistories:
    """The same machine driven by weights of our own: small pools, many forks, many equal prompts.

    faults: how likely it is that a fault comes before an operation.
    """
    return _run_machine(SimulatedHistories(), seed, operations, faults, **options)


def _run_machine(machine: Machine, seed: int, operations: int = 60, faults: float = 0, **options: Any) -> Machine:
    draw, faulty, ruling = random.Random(seed), random.Random(seed), random.Random(seed)
    sizes: dict[str, Any] = {
        "windows": draw.choice([(None, 5), (11, None), (None,), (5,)]),
        "blocks": draw.randint(14, 24),
        "budget": draw.choice([4, 7, 16]),
        "ahead": draw.choice([0, 1, 3]),
        "caching": draw.random() < 0.8,
        "chunk": draw.choice([None, 1, 3]),
    }
    machine.start(**sizes | options)
    for _ in range(operations):
        if faulty.random() < faults:
            machine.fault(faulty.choice(FAULTS))
        _random_operation(machine, draw, ruling)
        machine.blocks_add_up()
    machine.teardown()
    return machine


def _random_operation(machine: SimulatedHistories, draw: random.Random, ruling: random.Random) -> None:
    kind, running = draw.random(), machine.running()
    if kind < 0.35:
        machine.add(
            shared=draw.randint(0, 20),
            own=[draw.randint(0, 3) for _ in range(draw.randint(0, 8))],
            n=draw.choice([1, 1, 2, 4, 7]),
            tokens=draw.randint(1, 16),
            seed=draw.choice([0, 0, draw.getrandbits(60)]),
            ignore_eos=draw.random() < 0.5,
            prompt_logprobs=draw.choice([None, None, None, 1]),
            salt=draw.choice(["", "", "tenant"]),
            priority=machine.made * 7 % 5 - 2,
            toy=draw.choice([None, None, Toy(draw.randint(0, 9), draw.randint(1, 20))]),
            rules=ruling.choice(["none", "none", *RULES]),
            min_tokens=ruling.choice([0, 0, 4]),
        )
    elif kind < 0.70:
        machine.step(draw.randint(1, 6))
    elif kind < 0.76 and live_names(machine.core):
        machine.abort_request(draw.choice(live_names(machine.core)))
    elif kind < 0.84 and running:
        machine.stop_sequence(draw.choice(running))
    elif kind < 0.92 and running:
        machine.core.scheduler.state.preempt(draw.choice(running))
    else:
        machine.evict(draw.randint(0, 1), draw.random())


@pytest.mark.smoke
def test_random_histories() -> None:
    run_state_machine_as_test(SimulatedHistories, settings=history_settings(150))


# Seeds 86, 598 and 1276 once broke the tree: sequences that waited held blocks without the blocks above them.
@pytest.mark.parametrize(
    "seeds",
    [range(86, 87), range(598, 599), range(1276, 1277), pytest.param(range(0, 100), marks=pytest.mark.long)],
    ids=str,
)
def test_seeded_histories(seeds: range) -> None:
    machines = [_run_seeded(seed) for seed in seeds]
    assert len(seeds) == 1 or sum(machine.dead_ends for machine in machines) > 20


@pytest.mark.long
@pytest.mark.parametrize("shards", one_of(2, [2, 3]))
def test_seeded_histories_of_several_shards(shards: int) -> None:
    for seed in range(40):
        policy, decode_steps = ("fcfs", "priority", "sjf")[seed % 3], (1, 2, 7)[seed // 3 % 3]
        options: dict[str, Any] = {
            "policy": policy,
            "decode_steps": decode_steps,
            "partial": (None, 1, 2)[seed // 9 % 3],
        }
        _run_seeded(seed, shards=shards, faults=(0, 0.1)[seed % 2], retries=1000, **options)


@pytest.mark.long
@pytest.mark.parametrize(("stages", "drafts"), one_of(3, [(2, 3), (3, 0), (4, 3), (3, 3), (4, 0), (2, 0)]))
def test_seeded_histories_of_several_stages(stages: int, drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_rows, "LEAST_PROMPT_TOKENS", 2)
    for seed in range(40):
        policy, shards, ahead = ("fcfs", "priority", "sjf")[seed % 3], 1 + seed // 3 % 2, seed % 6
        options: dict[str, Any] = {"policy": policy, "partial": (None, 1, 2)[seed // 9 % 3], "ahead": ahead}
        options |= {"drafts": drafts, "faults": (0, 0.1)[seed % 2], "retries": 1000}
        _run_seeded(seed, stages=stages, shards=shards, **options)


@pytest.mark.parametrize("drafts", [0, 3])
def test_a_plan_that_names_too_early_a_step_gives_wrong_tokens(drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that has rows before their tokens are back."""
    finish = PlanBuilder.finish

    def too_early(self: PlanBuilder, index: int) -> StepPlan:
        plan = finish(self, index)
        return plan._replace(needs=plan.needs - 1)

    monkeypatch.setattr(PlanBuilder, "finish", too_early)
    with pytest.raises(AssertionError):
        _run_seeded(0, stages=3, ahead=3, drafts=drafts)


@pytest.mark.long
@pytest.mark.parametrize("policy", one_of(2, ["priority", "sjf"]))
def test_seeded_histories_of_other_policies(policy: str) -> None:
    for seed in range(40):
        _run_seeded(seed, policy=policy, partial=(None, 1, 2)[seed % 3], kept=(None, 0, 10, 30)[seed % 4])


@pytest.mark.long
@pytest.mark.parametrize("drafts", one_of(3, [3, 1, 8]))
def test_seeded_histories_with_drafts(drafts: int) -> None:
    for seed in range(30):
        _run_seeded(seed, faults=(0, 0.1)[seed % 2], drafts=drafts, shards=1 + seed // 2 % 2, retries=1000)


@pytest.mark.long
@pytest.mark.parametrize("decode_steps", one_of(3, [5, 2, 16]))
def test_seeded_histories_with_several_steps(decode_steps: int) -> None:
    for seed in range(30):
        faults = (0, 0.1)[seed % 2]
        _run_seeded(seed, faults=faults, decode_steps=decode_steps, partial=(None, 1)[seed // 2 % 2], retries=1000)


FOLLOWED: list[dict[str, Any]] = [
    {},
    {"shards": 2},
    {"decode_steps": 5},
    {"drafts": 3},
    {"drafts": 1, "shards": 3},
    {"stages": 3, "ahead": 3},
    {"stages": 3, "ahead": 3, "drafts": 3},
]


@pytest.mark.long
@pytest.mark.parametrize("options", one_of(3, FOLLOWED), ids=str)
def test_a_follower_repeats_seeded_histories(options: dict[str, Any]) -> None:
    """Half of them with calls that fail on the leader alone."""
    compared = failed = 0
    for seed in range(10):
        faults = (0, 0.1)[seed % 2]
        machine = _run_machine(FollowedHistories(), seed, faults=faults, retries=1000, **options)
        compared += machine.followed.compared
        failed += machine.core.stats().core.step_faults
    assert compared > 500
    assert failed > 10


@pytest.mark.smoke
def test_a_follower_repeats_random_histories() -> None:
    run_state_machine_as_test(FollowedHistories, settings=history_settings(40))


@pytest.mark.parametrize("policy", one_of(3, ["fcfs", "priority", "sjf"]))
def test_seeded_histories_with_faults(policy: str) -> None:
    """A fault changes no stream while there are tries left; without, it ends some with an error, and nothing else."""
    patient = [_run_seeded(seed, faults=0.2, policy=policy, partial=1 + seed % 2, retries=1000) for seed in range(25)]
    strict = [_run_seeded(seed, faults=0.2, policy=policy, retries=seed % 3) for seed in range(15)]
    assert sum(machine.core.stats().core.step_faults for machine in patient) > 100
    assert not any(machine.failed() for machine in patient)
    assert any(machine.failed() for machine in strict)


@pytest.mark.long
def test_more_random_histories() -> None:
    run_state_machines(SimulatedHistories, 20)


@pytest.mark.long
def test_more_seeded_histories() -> None:
    for seed in random_cases():
        _run_seeded(seed, shards=1 + seed % 3)
        policy, decode_steps = ("fcfs", "priority", "sjf")[seed % 3], (1, 2, 7)[seed // 3 % 3]
        _run_seeded(
            seed,
            policy=policy,
            partial=1 + seed // 3 % 2,
            kept=seed % 40,
            decode_steps=decode_steps,
            shards=1 + seed // 2 % 2,
        )


def test_a_prompt_with_log_probabilities_that_fills_the_pool_ends_after_preemption() -> None:
    """It once held most of its blocks twice, its own and the tree's, and never fitted again."""
    machine = SimulatedHistories()
    machine.start(windows=(None,), blocks=15, budget=4, ahead=0, caching=True, chunk=None)
    machine.add(
        shared=18, own=[54, 32, 60, 55, 54], n=1, tokens=1, seed=47, ignore_eos=True, prompt_logprobs=None, salt=""
    )
    machine.add(shared=19, own=[45, 18, 24, 0, 42], n=1, tokens=15, seed=0, ignore_eos=True, prompt_logprobs=1, salt="")
    machine.step(20)
    for request in machine.running():
        machine.core.scheduler.state.preempt(request)
    machine.teardown()
