"""Drafts of rows under masks, on the real runner: tokens are those without drafts, and drafts are kept."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.in_flight import InFlightSteps
from jaxinfer.engine.device.runner import Drafts
from jaxinfer.engine.masks import StepMasks
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.plan import StepPlan, StepResult
from jaxinfer.engine.token_rules import RuledMatcher
from jaxinfer.engine.types import FinishReason, GenerateRequest
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.runner.jax_runner import Forwarded, JaxRunner, StepInFlight
from jaxinfer.speculation import Method, Speculation
from tests.drafts.drafting import EOS, check_equal, made, params, repeating, runner, standing
from tests.engine.outputs import Outputs
from tests.engine.toy_grammar import Toy, ToyConstraints
from tests.runner.devices import run_on_devices
from tests.runner.failing_programs import FailingPrograms
from tests.runner.tiny import VOCABULARY, drive, make_core, tiny_model, tiny_shapes, with_blocks
from tests.turns import one_of

LOOSE, FORCING, SHORT = (Toy(*values).constraint for values in ((5, 80, False), (8, 80, True), (2, 16, False)))
FEW = tuple(range(100, 112))
"""Ids of which a loose grammar allows four at a time: texts repeat themselves."""
PARAMETERS: dict[str, dict[str, Any]] = {
    "free": {},
    "free, greedy": {"temperature": 0.0},
    "loose": {"structured_outputs": LOOSE, "allowed_token_ids": FEW},
    "greedy": {"structured_outputs": LOOSE, "allowed_token_ids": FEW, "temperature": 0.0},
    "alone": {"structured_outputs": LOOSE, "temperature": 0.2},
    "forcing": {"structured_outputs": FORCING, "temperature": 0.3},
    "ends": {"structured_outputs": SHORT, "allowed_token_ids": FEW, "temperature": 0.0},
    "ends itself": {"structured_outputs": SHORT, "ignore_eos": False, "logit_bias": {9: 4.0}},
    "n": {"structured_outputs": LOOSE, "allowed_token_ids": FEW, "n": 3, "temperature": 0.1, "max_tokens": 16},
    "penalties": {
        "structured_outputs": LOOSE, "allowed_token_ids": FEW, "temperature": 0.1,
        "frequency_penalty": 0.3, "presence_penalty": 0.2, "repetition_penalty": 1.1,
    },
    "logprobs": {"structured_outputs": LOOSE, "allowed_token_ids": FEW, "logprobs": 3, "temperature": 0.1},
    "allowed": {"allowed_token_ids": FEW[:4], "temperature": 0.5},
    "allowed, min_tokens": {
        "allowed_token_ids": (*FEW[:3], 9), "temperature": 0.0, "ignore_eos": False, "min_tokens": 14,
        "logit_bias": {9: 20.0},
    },
    "bad words": {"bad_token_ids": ((100, 101), (101, 101), (17, 18, 19), (102,)), "allowed_token_ids": FEW[:5]},
    "stops": {"structured_outputs": LOOSE, "allowed_token_ids": FEW, "stop_token_ids": (104, 107)},
    "min_tokens": {
        "structured_outputs": Toy(5, 40, False).constraint, "min_tokens": 25, "ignore_eos": False,
        "logit_bias": {9: 20.0}, "temperature": 0.0,
    },
    "agreed": {"allowed_token_ids": FEW[:6], "logit_bias": dict.fromkeys(FEW[:6], 25.0)},
    "agreed, n": {"allowed_token_ids": FEW[:6], "logit_bias": dict.fromkeys(FEW[:6], 25.0), "n": 2, "min_p": 0.2},
    "short": {"structured_outputs": LOOSE, "max_tokens": 2},
    "one": {"structured_outputs": LOOSE, "max_tokens": 1},
}  # fmt: skip


def requests(names: Sequence[str] = tuple(PARAMETERS)) -> list[GenerateRequest]:
    return [
        GenerateRequest(name, repeating(number, 5 + number % 9), params(**{"seed": number, **PARAMETERS[name]}))
        for number, name in enumerate(names)
    ]


def core_of(device: JaxRunner, *, fails: frozenset[int] = frozenset(), **options: Any) -> EngineCore:
    """fails: numbers of tokens after which no grammar's mask can be filled."""
    given: dict[str, Any] = {"ahead": 1, "eos": EOS, "clock": standing, **options}
    return make_core(device, constraints=ToyConstraints(VOCABULARY, fails), **given)


class Steps:
    """Of an engine from now on. kept: drafts of constrained rows. sizes: rows of each step that drafts under masks."""

    def __init__(self, core: EngineCore, monkeypatch: pytest.MonkeyPatch):
        self.kept = 0
        self.sizes: list[int] = []
        self._table, self._collect = core.scheduler.state.table, core.in_flight.collect
        monkeypatch.setattr(core.in_flight, "collect", self._counting)

    def _counting(self) -> tuple[StepPlan, StepResult]:
        plan, result = self._collect()
        constrained = self._table.constrained[plan.slots] & (self._table.epoch[plan.slots] == plan.epochs)
        if result.accepted is not None and constrained.any():
            self.kept += int(result.accepted[constrained].sum())
            self.sizes.append(plan.num_rows)
        return plan, result


@cache
def expected(ahead: int = 1) -> Outputs:
    """Without drafts."""
    return drive(core_of(runner(0), ahead=ahead), requests())


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("method", "tokens", "ahead"),
    one_of(
        3,
        [
            *(("ngram", *case) for case in [(3, 1), (1, 1), (3, 0)]),
            *(("draft_model", *case) for case in [(3, 3), (8, 1), (3, 0), (3, 1)]),
            *[("ngram", 3, 3), ("eagle3", 3, 1)],
        ],
    ),
)
def test_tokens_are_those_without_drafts(
    tokens: int, ahead: int, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, device = expected(ahead), runner(tokens, method)
    compiles, core = device.status().compiles_after_ready, core_of(device, ahead=ahead)
    steps = Steps(core, monkeypatch)
    check_equal(plain, drive(core, requests()))
    assert device.status().compiles_after_ready == compiles or tokens != 3
    assert steps.kept > (5 if method == "eagle3" else 40)  # a head of random numbers is seldom right
    assert core.stats().core.constraint_failures == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["draft", "verify", "accept", "masks", "history"])
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_fault_in_each_program(kind: str, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = runner(3, "draft_model" if ahead == 1 else "ngram")
    core = core_of(device, ahead=ahead, max_step_retries=10)
    steps = Steps(core, monkeypatch)
    for at in (3, 11):
        monkeypatch.setattr(device.stages[0], "programs", FailingPrograms(device.stages[0].programs, at, kind))
    check_equal(expected(ahead), drive(core, requests()))
    assert core.stats().core.step_faults == 2
    assert steps.kept > 40


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_few_blocks_preempt_rows_that_draft_under_masks(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_of(with_blocks(monkeypatch, runner(3, method), 24), caching=False)
    steps = Steps(core, monkeypatch)
    check_equal(expected(), drive(core, requests()))
    assert core.stats().scheduler.preemptions > 0
    assert steps.kept > 10


@pytest.mark.long
def test_a_mask_that_cannot_be_filled_ends_its_request_where_it_would_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After as many tokens as without drafts, though a draft's mask failed steps before."""
    fails = frozenset({13})
    plain = drive(core_of(runner(0), fails=fails), requests())
    core = core_of(runner(3), fails=fails)
    steps = Steps(core, monkeypatch)
    found = drive(core, requests())
    check_equal(plain, found)
    ended = [len(output.tokens) for output in found.values() if output.reason is FinishReason.ERROR]
    assert ended == [13] * len(ended)
    assert len(ended) > 6
    assert steps.kept > 30


@pytest.mark.long
def test_more_rows_than_are_checked_do_not_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [
        GenerateRequest(f"{number}", repeating(number, 4 + number % 5), params(
            seed=number, max_tokens=8 + number, temperature=0.1, allowed_token_ids=FEW,
            structured_outputs=LOOSE if number % 2 else None,
        ))
        for number in range(20)
    ]  # fmt: skip
    core = core_of(made(3, max_num_seqs=20, max_num_batched_tokens=128, few_sizes=False))
    steps = Steps(core, monkeypatch)
    check_equal(drive(core_of(runner(0)), asked), drive(core, asked))
    assert max(steps.sizes) == 16
    assert steps.kept > 30


@pytest.mark.long
@pytest.mark.parametrize("ahead", [0, 1])
def test_histories_have_the_tokens_that_grammars_force(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed at once, by plain steps between those that draft."""
    asked = [
        GenerateRequest(f"{salt}", repeating(salt, 6), params(
            seed=salt, max_tokens=60, temperature=0.2, structured_outputs=Toy(salt, 80, salt < 6).constraint,
            logit_bias=dict.fromkeys(FEW, 20.0) if salt >= 6 else {},
        ))
        for salt in range(9)
    ]  # fmt: skip
    plain = drive(core_of(runner(0), ahead=ahead), asked)
    device = runner(1)
    core = core_of(device, ahead=ahead)
    steps, table, looked = Steps(core, monkeypatch), core.scheduler.state.table, 0

    def check_histories(core: EngineCore, number: int) -> None:
        nonlocal looked
        history = np.asarray(device.stages[0].slots.state.history)
        for sequence in filter(None, table.sequences):
            known = table.known[sequence.slot]
            assert history[sequence.slot, :known].tolist() == table.tokens[sequence.slot, :known].tolist()
            looked += int(known)

    check_equal(plain, drive(core, asked, check_histories))
    stats = core.stats()
    assert looked > 1000
    assert stats.core.forced_tokens > 40
    assert stats.steps.speculate_steps > 20
    assert stats.steps.decode_steps > 2  # the clock stands still: where nothing is forced every step drafts
    assert steps.kept > 10


def wrong_places(self: StepMasks, in_flight: InFlightSteps, places: np.ndarray, rows: np.ndarray) -> None:
    """Every position draws under the mask of the one before it."""
    SEND(self, in_flight, places - (places % self._of_slot > 0), rows)


def without_copies(self: RuledMatcher) -> RuledMatcher:
    return self


def all_legal(self: JaxRunner, step: PackedStep, begun: Forwarded, counts: np.ndarray | None) -> StepInFlight:
    return FINISH(self, step, begun, None)


SEND, FINISH = StepMasks._send, JaxRunner.finish


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (StepMasks, "_send", wrong_places),
        (RuledMatcher, "copy", without_copies),
        (JaxRunner, "finish", all_legal),
    ],
)
def test_wrong_rules_are_seen(owner: type, name: str, wrong: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [request for request in requests() if request.sampling.n == 1]
    plain = {key: output for key, output in expected().items() if key[0] in {each.request_id for each in asked}}
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(AssertionError):
        check_equal(plain, drive(core_of(runner(3)), asked))


@pytest.mark.parametrize("name", ["stops", "ends", "greedy"])
def test_every_draft_that_is_computed_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Illegal ones are rejected, and one that ends a text is accepted."""
    (subject,) = requests([name])
    tokens = drive(core_of(runner(0)), [subject])[name, 0].tokens
    for wrong in (False, True):
        prediction = [(token + wrong * (place % 4 == 3)) % VOCABULARY for place, token in enumerate(tokens)]
        core, device, read = core_of(runner(3), ahead=0), runner(3), []

        def read_drafts(index: int, read: list[Drafts] = read) -> Drafts:
            read.append(JaxRunner.read_drafts(runner(3), index))
            return read[-1]

        monkeypatch.setattr(device, "read_drafts", read_drafts)
        output = drive(core, [replace(subject, prediction=prediction)])[name, 0]
        assert output.tokens == tokens
        assert core.stats().drafts.draft_tokens == sum(int(each.counts.sum()) for each in read) > 0
        assert output.accepted_prediction + output.rejected_prediction <= core.stats().drafts.draft_tokens
        assert (output.rejected_prediction > 0) == wrong
        assert output.accepted_prediction > 2


@pytest.mark.long
@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_no_more_is_drafted_than_a_step_asks_for(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draft is a pass of its own."""
    device, read = runner(3, method), []
    core = core_of(device, ahead=0)
    policy, asked = core.scheduler.drafts, cycle([1, 2])
    assert policy is not None

    def read_drafts(index: int) -> Drafts:
        read.append(JaxRunner.read_drafts(device, index))
        return read[-1]

    monkeypatch.setattr(device, "read_drafts", read_drafts)
    monkeypatch.setattr(policy, "drafts", lambda *_: next(asked))
    check_equal(expected(), drive(core, requests()))
    assert {int(each.counts.max()) for each in read} >= {1, 2}
    for drafts, counts in read:
        assert (drafts[:, : counts.max()] >= 0).all()
        assert (drafts[:, max(counts.max(), 1) :] < 0).all()


def compare_shards() -> None:
    def run(shards: int, drafting: Speculation | None):
        mesh = make_mesh(MeshConfig({"data": shards}))
        model = tiny_model((None, 12), mesh=mesh)
        shapes = tiny_shapes(model, max_num_seqs=2, max_num_batched_tokens=16, shards=shards, drafting=drafting)
        device = JaxRunner(model, shapes)
        device.warm_up(when="lazy")
        core = core_of(device)
        return drive(core, [one for one in requests()[2:18] if one.sampling.n <= 2]), core.stats()

    found, stats = run(2, Speculation(3, 1, 3))
    check_equal(run(1, None)[0], found)
    assert stats.drafts.accepted_tokens > 30, stats.drafts.accepted_tokens


@pytest.mark.long
def test_over_two_data_shards() -> None:
    run_on_devices(compare_shards, 2)
