"""Sequences that may not draw any token, on the simulated device: what they draw follows from the rules alone."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.client.local import LocalEngineClient
from jaxinfer.engine.client.thread import EngineThread
from jaxinfer.engine.constraint import MatcherError
from jaxinfer.engine.device.runner import Drafts
from jaxinfer.engine.stats.step_timer import StepTimer
from jaxinfer.engine.step.buckets import first_buckets, make_buckets, with_size
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.plan import StepKind
from jaxinfer.engine.types import FinishReason, GenerateRequest, StepOutput
from jaxinfer.engine.validation import CheckedRequest
from jaxinfer.errors import EngineDeadError, JaxinferError, ParameterError
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Speculation
from tests.engine.faulty import FAULTS, FaultAt, FaultyRunner
from tests.engine.small import (
    VOCABULARY,
    Got,
    RecordingRunner,
    ask,
    right,
    run,
    small_core,
    small_shapes,
    step,
    tokens_of,
)
from tests.engine.stepping import step_deltas
from tests.engine.toy_grammar import Toy, ToyConstraints, ToyMatcher

TOY = Toy(5, 40)
"""Longer than anything that is asked for here."""


def constrained(name: str, prompt: int = 5, tokens: int = 12, toy: Toy = TOY, **changes: Any) -> GenerateRequest:
    return ask(name, prompt, tokens, structured_outputs=toy.constraint, **changes)


def core_of(runner: RecordingRunner | None = None, **options: Any):
    return small_core(runner, constraints=ToyConstraints(VOCABULARY), **options)


@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_rows_draw_what_they_may_beside_rows_that_draw_anything(ahead: int) -> None:
    core = core_of(ahead=ahead)
    requests = [constrained("a"), ask("b", 7, 12), constrained("c", 9, toy=Toy(8, 40), n=2)]
    for request in requests:
        core.add_request(request)
    got = run(core)
    for request in requests:
        for index in range(request.sampling.n):
            assert tokens_of(got[request.request_id, index]) == right(core, request, index)
    assert right(core, requests[0]) != right(core, ask("a", 5, 12))


def test_a_step_waits_for_its_constrained_rows_alone() -> None:
    """Plain rows are planned, dispatched and read as they are without constrained ones."""
    core = core_of(ahead=1)
    core.add_request(ask("plain", 4, 20))
    for _ in range(4):
        core.step()
    assert len(core.in_flight) == 1
    core.add_request(constrained("a", tokens=4))
    run_steps = [core.step() for _ in range(4)]
    assert all(isinstance(output, StepOutput) for outputs in run_steps for output in outputs)
    assert core.stats().time.constrain_seconds > 0


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_text_that_can_only_end_ends(ahead: int) -> None:
    """With `stop`, and all of its tokens: none of them is a stop token."""
    core = core_of(ahead=ahead, eos=(7,))
    core.add_request(constrained("a", tokens=20, toy=Toy(2, 6), min_tokens=15))
    got = run(core)
    last = got["a", 0][-1]
    assert (last.finish_reason, last.stop_token_id) == (FinishReason.STOP, None)
    assert len(tokens_of(got["a", 0])) == 6


def test_where_it_may_end_every_stop_id_is_legal_and_nowhere_else() -> None:
    found = set()
    for seed in range(60):
        core = core_of(ahead=1, eos=(7,))
        core.add_request(constrained("a", tokens=30, toy=Toy(seed % 3, 24), seed=seed, stop_token_ids=[9, 60]))
        deltas = run(core)["a", 0]
        found.add(deltas[-1].stop_token_id)
        tokens = tokens_of(deltas)
        assert not {7, 9, 60} & set(tokens[:-1])
        assert deltas[-1].stop_token_id is None or len(tokens) > 12
    assert {7, 9, 60} <= found


def test_several_steps_give_way() -> None:
    runner = RecordingRunner(small_shapes(decode_steps=4))
    core = core_of(runner)
    core.add_request(ask("b", 3, 12))
    core.add_request(constrained("a"))
    got = run(core)
    assert tokens_of(got["a", 0]) == right(core, constrained("a"))
    assert all(plan.samples.max(initial=0) <= 1 for plan in runner.plans if plan.num_rows == 2)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_forced_tokens_take_one_step(ahead: int) -> None:
    """They are the same ones, each once, and steps are saved; blocks that they fill can be reused."""
    steps = {}
    for fast in (False, True):
        core = core_of(ahead=ahead, fast_forward=fast)
        requests = [constrained(name, tokens=30, toy=Toy(salt, 80)) for salt, name in enumerate("abc")]
        for request in requests:
            core.add_request(request)
        got = run(core)
        assert all(tokens_of(got[request.request_id, 0]) == right(core, request) for request in requests)
        steps[fast] = core.stats().core.steps
        assert (core.stats().core.forced_tokens > 30) == fast
        assert core.stats().core.generation_tokens == 90
    assert steps[True] < 0.75 * steps[False]
    known = [*requests[0].prompt_token_ids, *right(core, requests[0])]
    core.add_request(replace(ask("again", 1, 1), prompt_token_ids=known))
    assert run(core)["again", 0][0].cached_tokens == 32


@pytest.mark.parametrize("asked", [{"logprobs": 1}, {"prompt_logprobs": 1}, {"repetition_penalty": 1.1}])
def test_rows_whose_every_draw_counts_go_token_by_token(asked: dict[str, Any]) -> None:
    core = core_of(ahead=1)
    core.add_request(constrained("a", tokens=20, **asked))
    assert tokens_of(run(core)["a", 0]) == right(core, constrained("a", tokens=20))
    assert core.stats().core.forced_tokens == 0


@pytest.mark.parametrize(("mixed", "pays"), [(1.5, True), (30.0, False)])
def test_it_is_done_where_it_pays(mixed: float, pays: bool) -> None:
    """Two or more tokens come in a step: that pays where it takes less than twice as long."""
    runner = RecordingRunner(small_shapes())
    buckets = make_buckets(runner.shapes)
    seconds = dict.fromkeys([(StepKind.DECODE, rows) for rows in buckets.rows], 1.0)
    runner.step_seconds = seconds | dict.fromkeys([(StepKind.MIXED, size) for size in buckets.tokens], mixed)
    core = core_of(runner)
    core.add_request(constrained("a", tokens=20))
    assert tokens_of(run(core)["a", 0]) == right(core, constrained("a", tokens=20))
    assert (core.stats().core.forced_tokens > 0) == pays


@pytest.mark.few(6)
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("asked", [{}, {"logprobs": 1}, {"repetition_penalty": 1.1}])
def test_rows_do_not_draft_where_forced_tokens_are_computed_at_once(asked: dict[str, Any], stages: int) -> None:
    """A step that drafts gets two tokens at most, a plain one all that are forced; but not where every draw counts.
    Other rows' steps, of which each takes a share where there are stages, draft as ever."""
    runner = RecordingRunner(small_shapes(drafting=Speculation(1, 1, 2), stages=stages))
    core = core_of(runner, clock=lambda: 0)
    plain_next, waits = core.scheduler.state.table.plain_next, []
    requests = [constrained(f"{salt}", tokens=30, toy=Toy(salt, 80), **asked) for salt in range(12)]
    for request in requests:
        core.add_request(request)
    got: Got = {}
    while core.has_work():
        before, dispatched = plain_next.copy(), len(runner.plans)
        step(core, got)
        for plan in runner.plans[dispatched:]:
            waits.append(before[plan.slots].any())
            assert not waits[-1] or plan.kind is not StepKind.SPECULATE
    assert all(tokens_of(got[request.request_id, 0]) == right(core, request) for request in requests)
    assert any(waits) == (core.stats().core.forced_tokens > 20) == (not asked)
    assert any(plan.kind is StepKind.SPECULATE for plan in runner.plans)


def test_the_wait_for_drafts_is_one_for_masks() -> None:
    now = [0]

    class SlowDrafts(RecordingRunner):
        def read_drafts(self, index: int) -> Drafts:
            now[0] += 20_000_000
            return super().read_drafts(index)

    core = core_of(SlowDrafts(small_shapes(drafting=Speculation(3, 1, 2))), clock=lambda: 0)
    core.timer = StepTimer(lambda: now[0])
    core.add_request(constrained("a", tokens=10, toy=Toy(5, 40, forces=False)))
    run(core)
    stats = core.stats()
    assert stats.steps.speculate_steps > 5
    assert stats.core.mask_wait_seconds == pytest.approx(0.02 * stats.steps.speculate_steps)
    assert stats.time.constrain_seconds == 0


@pytest.mark.parametrize("grown", [(), ("rows", 2), ("rows", 16), ("checked", 4)])
def test_masked_drafts_have_sizes_of_their_own(grown: tuple[str, int] | tuple[()]) -> None:
    """Of which there may be more than of other steps, or fewer, while programs are added."""
    shapes = small_shapes(200, drafting=Speculation(3, 1, 2), max_num_seqs=20, max_num_batched_tokens=32, max_scored=20)
    sizes = list[int]()

    class Growing(RecordingRunner):
        def begin(self, step: PackedStep) -> float:
            if step.kind is StepKind.SPECULATE:
                sizes.append(step.bucket)
            return super().begin(step)

    runner = Growing(shapes)
    runner.buckets = first_buckets(shapes)
    if grown:
        runner.buckets = with_size(runner.buckets, *grown)
    core = core_of(runner, ahead=1)
    for i in range(12):
        core.add_request(constrained(f"{i}", tokens=6 + i, toy=Toy(5, 40, forces=False)))
    run(core)
    assert {8, 16} <= set(sizes) <= set(runner.buckets.checked)


@pytest.mark.parametrize("at", FAULTS)
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_failed_steps_change_nothing(at: FaultAt, ahead: int) -> None:
    runner = FaultyRunner(small_shapes())
    core = core_of(runner, ahead=ahead, max_step_retries=10)
    for name in "abc":
        core.add_request(constrained(name))
    got: dict = {}
    for number in range(200):
        if number in (3, 7):
            runner.fail_once(at)
        if not core.has_work():
            break
        for delta in step_deltas(core):
            got.setdefault((delta.request_id, delta.index), []).append(delta)
    assert core.stats().core.step_faults == 2
    for name in "abc":
        assert tokens_of(got[name, 0]) == right(core, constrained(name))


def test_a_matcher_that_fails_ends_its_request_alone() -> None:
    core = small_core(constraints=ToyConstraints(VOCABULARY, frozenset({4})), ahead=1)
    core.add_request(constrained("a"))
    core.add_request(ask("b", 4, 12))
    got = run(core)
    last = got["a", 0][-1]
    assert (last.finish_reason, last.error) == (FinishReason.ERROR, "the toy is broken")
    assert last.param == "structured_outputs"
    assert tokens_of(got["a", 0]) == right(core, constrained("a"))[:4]
    assert tokens_of(got["b", 0]) == right(core, ask("b", 4, 12))
    assert not core.has_work()


def test_a_mask_that_has_not_changed_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = RecordingRunner(small_shapes())
    core = core_of(runner)
    monkeypatch.setattr(Toy, "allowed", lambda self, tokens, stops, size: list(range(10, 20)))
    core.add_request(constrained("a"))
    got = run(core)
    assert set(tokens_of(got["a", 0])) <= set(range(10, 20))
    assert len(runner.masks) == 1


def test_a_mask_that_was_sent_keeps_no_others_alive() -> None:
    """Of each slot its own bits stay, however many rows were filled beside it."""
    core = small_core()
    for name in "abcd":
        core.add_request(ask(name, 4, 30, allowed_token_ids=[5, 6, 7]))
        core.step()
        core.step()
    sent = core._masks._sent
    owners = {id(owner): owner for row in sent.values() for owner in [row if row.base is None else row.base]}
    assert sum(owner.nbytes for owner in owners.values()) == len(sent) * core.runner.shapes.mask_words * 4
    run(core)


def test_without_constraints_they_are_refused() -> None:
    with pytest.raises(ParameterError, match="structured_outputs: this engine has no tokenizer"):
        small_core().add_request(constrained("a"))


async def test_a_request_is_queued_when_its_grammar_is_compiled_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused is so at once, and other requests go on."""
    core = core_of()
    client = LocalEngineClient(core)
    with pytest.raises(ParameterError, match="a text of no tokens"):
        await client.submit(constrained("no", toy=Toy(1, 0)))
    stream = await client.submit(constrained("a"))
    tokens = [token async for deltas in stream for delta in deltas for token in delta.token_ids]
    assert tokens == right(core, constrained("a"))
    assert client.stats().scheduler.waiting == 0
    await client.close()


def test_masks_of_a_vocabulary_that_fills_no_word() -> None:
    """61 tokens: the last word has three bits that are no token's."""
    core = core_of()
    assert core.runner.shapes.mask_words == 2
    rows = np.zeros((1, 2), np.int32)
    matcher = ToyConstraints(VOCABULARY).compile(constrained("a").sampling, frozenset())
    assert ToyConstraints(VOCABULARY).fill([matcher], rows) == {}
    bits = np.unpackbits(rows.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == matcher.allowed()


class SlowConstraints(ToyConstraints):
    """Compiles when it is let to."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY)
        self.gate, self.begun = threading.Event(), threading.Event()

    def compile(self, params: SamplingParams, stop_ids: frozenset[int]) -> ToyMatcher:
        self.begun.set()
        assert self.gate.wait(20)
        return super().compile(params, stop_ids)


async def slow_client() -> tuple[SlowConstraints, LocalEngineClient]:
    constraints = SlowConstraints()
    return constraints, LocalEngineClient(small_core(constraints=constraints))


async def test_a_request_that_is_given_up_while_it_compiles_leaves_nothing() -> None:
    """Its id is free at once; what is asked for under it then is another request."""
    constraints, client = await slow_client()
    first = asyncio.create_task(client.submit(constrained("a", toy=Toy(1, 40))))
    await asyncio.to_thread(constraints.begun.wait, 20)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert client.stats().scheduler.waiting == 0
    second = asyncio.create_task(client.submit(constrained("a", toy=Toy(2, 40))))
    await asyncio.sleep(0.05)
    assert not second.done()
    constraints.gate.set()
    tokens = [token async for deltas in await second for delta in deltas for token in delta.token_ids]
    assert tokens == right(small_core(), constrained("a", toy=Toy(2, 40)))
    assert client.stats().scheduler.waiting == 0
    await client.close()


async def test_others_go_on_while_one_compiles_and_its_id_is_taken() -> None:
    constraints, client = await slow_client()
    slow = asyncio.create_task(client.submit(constrained("a")))
    await asyncio.to_thread(constraints.begun.wait, 20)
    free = [token async for deltas in await client.submit(ask("b", 4, 12)) for d in deltas for token in d.token_ids]
    assert free == right(small_core(), ask("b", 4, 12))
    with pytest.raises(ParameterError, match="request_id: 'a' is in use"):
        await client.submit(constrained("a"))
    assert client.stats().scheduler.waiting == 1
    constraints.gate.set()
    assert [deltas async for deltas in await slow]
    await client.close()


class KeepsOne(SlowConstraints):
    """Has TOY already."""

    def is_kept(self, params: SamplingParams, stop_ids: frozenset[int]) -> bool:
        return Toy.of(params) == TOY

    def compile(self, params: SamplingParams, stop_ids: frozenset[int]) -> ToyMatcher:
        kept = self.is_kept(params, stop_ids)
        return ToyConstraints.compile(self, params, stop_ids) if kept else super().compile(params, stop_ids)


async def test_what_is_compiled_already_waits_for_none_that_takes_long() -> None:
    constraints = KeepsOne()
    client = LocalEngineClient(small_core(constraints=constraints))
    slow = [asyncio.create_task(client.submit(constrained(name, toy=Toy(1, 40)))) for name in "abcd"]
    await asyncio.to_thread(constraints.begun.wait, 20)
    stream = await asyncio.wait_for(client.submit(constrained("kept")), 5)
    tokens = [token async for deltas in stream for delta in deltas for token in delta.token_ids]
    assert tokens == right(small_core(), constrained("kept"))
    assert not any(task.done() for task in slow)
    constraints.gate.set()
    await asyncio.gather(*slow)
    await client.close()


async def test_closing_ends_what_compiles() -> None:
    constraints, client = await slow_client()
    waiting = [asyncio.create_task(client.submit(constrained(name))) for name in "abcd"]
    await asyncio.to_thread(constraints.begun.wait, 20)
    closing = asyncio.create_task(client.close())
    for task in waiting:
        with pytest.raises(EngineDeadError):
            await asyncio.wait_for(task, 20)
    constraints.gate.set()
    await closing
    with pytest.raises(EngineDeadError):
        await client.submit(constrained("e"))


class Told:
    """What an EngineThread tells of requests that it compiles."""

    def __init__(self) -> None:
        self.refused: dict[str, JaxinferError | None] = {}

    def on_compiled(self, client_id: int, request: GenerateRequest, refused: JaxinferError | None) -> None:
        self.refused[request.request_id] = refused

    def on_outputs(self, outputs: Sequence[StepOutput]) -> None: ...

    def on_error(self, client_id: int, request_id: str, error: JaxinferError) -> None: ...

    def on_forgotten(self, client_id: int) -> None: ...

    def on_death(self) -> None: ...


def test_what_another_thread_submits_while_it_closes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that compile are taken, and end just after."""
    constraints, told = SlowConstraints(), Told()
    core = small_core(constraints=constraints)
    engine = EngineThread(core, told)
    engine.start()
    for name in "ab":
        engine.submit(constrained(name))
    begun, closing, check = threading.Event(), threading.Event(), core.check
    shutdown = engine._compiler.shutdown

    def slow_check(request: GenerateRequest) -> CheckedRequest:
        begun.set()
        assert closing.wait(20)
        return check(request)

    def late_shutdown(**options: Any) -> None:
        closing.set()
        submitting.join(20)
        shutdown(**options)

    monkeypatch.setattr(core, "check", slow_check)
    monkeypatch.setattr(engine._compiler, "shutdown", late_shutdown)
    submitting = threading.Thread(target=engine.submit, args=[constrained("late")])
    submitting.start()
    assert begun.wait(20)
    engine.close()
    constraints.gate.set()
    engine.join()
    assert sorted(told.refused) == ["a", "b", "late"]
    assert all(isinstance(error, EngineDeadError) for error in told.refused.values())


def test_a_token_that_does_not_follow_ends_its_request_by_an_error_of_its_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = core_of()
    core.add_request(constrained("a"))
    core.add_request(ask("b", 4, 12))

    def accept(self: ToyMatcher, tokens: Any) -> None:
        raise MatcherError("no more")

    monkeypatch.setattr(ToyMatcher, "accept", accept)
    got = run(core)
    last = got["a", 0][-1]
    assert (last.finish_reason, last.error, last.param) == (FinishReason.ERROR, "no more", "structured_outputs")
    assert core.stats().core.constraint_failures == 1
    assert (got["b", 0][-1].finish_reason, got["b", 0][-1].param) == (FinishReason.LENGTH, None)


def test_foreseen_tokens_that_do_not_follow_any_more_are_no_fault_of_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A grammar may reach a limit that it had not reached when it forced them."""
    core = core_of(ahead=1)

    class Full(ToyMatcher):
        def accept(self, tokens: Any) -> None:
            raise MatcherError("no more")

    def copy(self: ToyMatcher) -> ToyMatcher:
        return Full(self.toy, self.stops, self.vocab_size, self.tokens)

    for name in ("a", "c"):
        core.add_request(constrained(name, tokens=30, n=1 if name == "a" else 2))
    core.add_request(ask("b", 4, 12))
    for _ in range(2):
        core.step()
    monkeypatch.setattr(ToyMatcher, "copy", copy)
    got = run(core)
    assert (got["a", 0][-1].error, got["a", 0][-1].param) == ("no more", "structured_outputs")
    assert got["b", 0][-1].finish_reason is FinishReason.LENGTH
    assert (core.stats().core.constraint_failures, core.stats().core.step_faults) == (3, 0)


def test_failures_waiting_and_compiling_are_counted() -> None:
    core = small_core(constraints=ToyConstraints(VOCABULARY, frozenset({4})), ahead=1)
    core.add_request(constrained("a", n=2))
    core.add_request(ask("b", 4, 12))
    core.add_request(ask("c", 4, 12, allowed_token_ids=[5], bad_token_ids=[[5, 5]]))
    run(core)
    stats = core.stats()
    assert stats.core.constraint_failures == 3
    assert 0 < stats.core.mask_wait_seconds < stats.time.wait_seconds + stats.time.apply_seconds
    assert (stats.constraints.grammars_compiled, stats.constraints.grammar_seconds) == (3, 1.5)
    plain = small_core(ahead=1)
    plain.add_request(ask("b", 4, 12))
    run(plain)
    stats = plain.stats()
    assert (stats.core.constraint_failures, stats.core.mask_wait_seconds, stats.time.constrain_seconds) == (0, 0, 0)
    assert (stats.constraints.grammars_compiled, stats.constraints.grammars_kept) == (0, 0)


def test_what_cannot_be_filled_is_no_fault_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_of(ahead=1)
    core.add_request(constrained("a"))
    core.add_request(ask("b", 4, 12))
    monkeypatch.setattr(core.constraints, "fill", lambda *_: 1 / 0)
    got = run(core)
    assert got["a", 0][-1].error == "masks could not be filled: ZeroDivisionError"
    assert got["a", 0][-1].param is None
    assert tokens_of(got["b", 0]) == right(core, ask("b", 4, 12))
    assert core.stats().core.step_faults == 0
