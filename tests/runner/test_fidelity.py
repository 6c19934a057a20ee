"""The same request gives the same tokens, whatever runs beside it and however its tokens are computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.sequence import Status
from jaxinfer.engine.types import FinishReason, GenerateRequest
from jaxinfer.models.loaded import plan_model
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.sampling import SamplingParams
from tests.runner.tiny import (
    Judge,
    Output,
    Outputs,
    check_all,
    check_logprobs,
    drive,
    greedy,
    make_core,
    random_prompt,
    seeded,
    tiny_runner,
)

MODELS = {"full": (None, None), "windowed": (None, 12)}
AHEAD = [0, 1, 3]


@dataclass(frozen=True)
class Bench:
    """One model under test, its judge, and what each subject gave when it ran alone."""

    runner: JaxRunner
    judge: Judge
    alone: Outputs


@cache
def bench(name: str) -> Bench:
    runner = tiny_runner(MODELS[name], max_num_seqs=32, few_sizes=False)
    judge = Judge(runner.stages[0].model)
    alone: Outputs = {}
    for subject in SUBJECTS:
        alone |= drive(make_core(runner, ahead=0, caching=False), [subject])
    assert all(output.error is None for output in alone.values())
    check_all(judge, SUBJECTS, alone)
    return Bench(runner, judge, alone)


@pytest.fixture(params=list(MODELS))
def models(request) -> Bench:
    return bench(request.param)


def _subjects() -> list[GenerateRequest]:
    rng = np.random.default_rng(20)
    common = random_prompt(rng, 24)
    return [
        GenerateRequest("short", random_prompt(rng, 1), greedy(30)),
        GenerateRequest("long", random_prompt(rng, 66), greedy(20)),
        GenerateRequest("whole blocks", [*common, *random_prompt(rng, 8)], greedy(24, repetition_penalty=1.3)),
        GenerateRequest("seeded", [*common, *random_prompt(rng, 5)], seeded(30, 7)),
        GenerateRequest("top_k", random_prompt(rng, 33), seeded(20, 2**63 - 1, top_k=20, min_p=0.01, top_p=1.0)),
        GenerateRequest("greedy choices", random_prompt(rng, 22), greedy(12, n=3)),
        GenerateRequest("choices", [*common, *random_prompt(rng, 7)], seeded(16, -5, n=4)),
        GenerateRequest("choices of whole blocks", random_prompt(rng, 21), seeded(16, 11, n=4)),
        GenerateRequest("choices of one token", random_prompt(rng, 1), seeded(10, 12, n=2)),
    ]


SUBJECTS = _subjects()


def fillers(count: int, seed: int = 21) -> list[GenerateRequest]:
    """Requests that nobody looks at; some share a prefix with subjects."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        prompt = [*SUBJECTS[3].prompt_token_ids[: 12 * (i % 3)], *random_prompt(rng, int(rng.integers(1, 40)))]
        params = greedy(int(rng.integers(1, 25))) if i % 2 else seeded(int(rng.integers(1, 25)), i)
        made.append(GenerateRequest(f"filler {i}", prompt, params))
    return made


def assert_same(models: Bench, outputs: Outputs, requests: Sequence[GenerateRequest]) -> None:
    """Equal to a run alone, up to the first near tie (jaxinfer/design/tests.md); every token is judged as well."""
    check_all(models.judge, requests, outputs)
    flips = 0
    for request in requests:
        for index in range(request.sampling.n):
            key = (request.request_id, index)
            if key not in models.alone:
                continue
            alone, other = models.alone[key], outputs[key]
            assert other.reason == alone.reason
            if other.tokens != alone.tokens:
                excused = [models.judge.flips(request, index, output) for output in (alone, other)]
                first = next(
                    i for i, pair in enumerate(zip(alone.tokens, other.tokens, strict=True)) if len(set(pair)) > 1
                )
                assert any(first in found for found in excused), f"{key} diverges at {first}"
                flips += 1
    if flips:
        print(f"{flips} sequences part at near ties")


def preempting(every: int) -> Callable[[EngineCore, int], None]:
    """Preempts running requests in turn, parents and draining ones as they come."""

    def between(core: EngineCore, number: int) -> None:
        running = [sequence for sequence in core.scheduler.state.running if sequence.status is Status.RUNNING]
        if number % every == every - 1 and running:
            core.scheduler.state.preempt(running[number // every % len(running)])

    return between


@pytest.mark.few(1)
@pytest.mark.parametrize("ahead", AHEAD)
def test_alone(models, ahead) -> None:
    for subject in SUBJECTS:
        assert_same(models, drive(make_core(models.runner, ahead=ahead), [subject]), [subject])


@pytest.mark.long
@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("caching", [True, False])
def test_in_a_batch_of_32(models, ahead, caching) -> None:
    requests = [*SUBJECTS, *fillers(32 - len(SUBJECTS))]
    core = make_core(models.runner, ahead=ahead, caching=caching)
    assert_same(models, drive(core, requests), requests)


@pytest.mark.few(1)
@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_in_chunks(models, chunk, ahead) -> None:
    requests = [*SUBJECTS, *fillers(6)]
    core = make_core(models.runner, ahead=ahead, long_prefill_token_threshold=chunk)
    assert_same(models, drive(core, requests), requests)


@pytest.mark.few(3)
@pytest.mark.parametrize("ahead", AHEAD)
def test_with_prefix_hits(models, ahead) -> None:
    core = make_core(models.runner, ahead=ahead)
    drive(core, [replace(subject, request_id=f"first {subject.request_id}") for subject in SUBJECTS])
    outputs = drive(core, SUBJECTS)
    assert_same(models, outputs, SUBJECTS)
    for subject in SUBJECTS:
        # All whole blocks but that of the last token are hit.
        whole = (len(subject.prompt_token_ids) - 1) // 4 * 4
        assert outputs[subject.request_id, 0].cached == whole
    assert sum(output.cached > 0 for output in outputs.values()) > 5
    assert all(output.cached == 0 for output in models.alone.values())


def test_a_prompt_that_goes_on_from_an_output_hits_its_blocks(models) -> None:
    core = make_core(models.runner)
    first = drive(core, [SUBJECTS[1]])["long", 0]
    prompt = [*SUBJECTS[1].prompt_token_ids, *first.tokens]
    second = GenerateRequest("second", prompt, greedy(8))
    output = drive(core, [second])
    assert output["second", 0].cached > len(SUBJECTS[1].prompt_token_ids)
    check_all(models.judge, [second], output)


@pytest.mark.few(4)
@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("every", [1, 3, 10])
def test_after_preemption(models, every, ahead) -> None:
    requests = [*SUBJECTS, *fillers(6)]
    core = make_core(models.runner, ahead=ahead, caching=bool(every % 2))
    between = preempting(every)

    def some(core: EngineCore, number: int) -> None:
        # A request that is preempted before its result can be read gets nowhere: at some time it must end.
        if number < 60 and (every > 1 or number % 12 < 4):
            between(core, number)

    outputs = drive(core, requests, some)
    assert core.stats().scheduler.preemptions >= 3
    assert_same(models, outputs, requests)


def test_sequences_of_one_request(models) -> None:
    """A sequence does not depend on how many there are; the first is what a request of one gives."""
    one = [replace(s, sampling=replace(s.sampling, n=1)) for s in SUBJECTS if s.sampling.n > 1]
    two = [replace(s, sampling=replace(s.sampling, n=2)) for s in SUBJECTS if s.sampling.n > 1]
    for requests in (one, two):
        assert_same(models, drive(make_core(models.runner), requests), requests)
    seeds = [models.alone["choices", i].tokens for i in range(4)]
    assert len({tuple(tokens) for tokens in seeds}) == 4


def test_requests_without_a_seed_draw_differently(models) -> None:
    requests = [GenerateRequest(f"r{i}", [5, 6, 7], SamplingParams(max_tokens=12)) for i in range(4)]
    outputs = drive(make_core(models.runner), requests)
    assert len({tuple(output.tokens) for output in outputs.values()}) == 4


@pytest.mark.few(2)
@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("chunk", [None, 7])
def test_logprobs_of_output_and_prompt(models, chunk, ahead) -> None:
    rng = np.random.default_rng(22)
    asked = [
        GenerateRequest("all", random_prompt(rng, 45), greedy(8, logprobs=20, prompt_logprobs=20)),
        GenerateRequest("own", random_prompt(rng, 9), seeded(8, 1, logprobs=0)),
        GenerateRequest("prompt", random_prompt(rng, 70), seeded(3, 2, prompt_logprobs=3)),
        GenerateRequest("one token", random_prompt(rng, 1), seeded(3, 2, prompt_logprobs=2, logprobs=2)),
        GenerateRequest("choices", random_prompt(rng, 30), seeded(6, 3, n=3, logprobs=5, prompt_logprobs=2)),
    ]
    core = make_core(models.runner, ahead=ahead, long_prefill_token_threshold=chunk)
    requests = [*asked, *fillers(6)]
    for _ in range(2):  # the second time with prefix hits for those that may use them
        outputs = drive(core, requests, preempting(9))
        check_all(models.judge, requests, outputs)
        for request in asked:
            for index in range(request.sampling.n):
                output = outputs[request.request_id, index]
                if index:
                    assert output.prompt_logprobs is None
                    output = replace(output, prompt_logprobs=outputs[request.request_id, 0].prompt_logprobs)
                check_logprobs(models.judge, request, output)


@pytest.mark.parametrize("ahead", [0, pytest.param(1, marks=pytest.mark.smoke), 3])
def test_min_tokens_stop_ids_and_end_of_sequence(ahead) -> None:
    """Each ends where the oracle's own tokens do, and min_tokens bans stop ids until then."""
    models = bench("full")
    free = models.alone["long", 0].tokens
    stop = free[4]
    prompt = SUBJECTS[1].prompt_token_ids
    requests = [
        GenerateRequest("stops", prompt, greedy(20)),
        GenerateRequest("ignores", prompt, greedy(20, ignore_eos=True)),
        GenerateRequest("own", prompt, greedy(20, ignore_eos=True, stop_token_ids=[free[7], stop])),
        GenerateRequest("late", prompt, greedy(20, min_tokens=9)),
    ]
    outputs = drive(make_core(models.runner, ahead=ahead, eos=(stop,)), requests)
    early = free[: free.index(stop) + 1]
    assert outputs["stops", 0].tokens == outputs["own", 0].tokens == early
    assert outputs["stops", 0].reason == outputs["own", 0].reason == FinishReason.STOP
    assert outputs["stops", 0].stopped_by == outputs["own", 0].stopped_by == stop
    assert outputs["ignores", 0].tokens == free
    assert outputs["ignores", 0].reason == FinishReason.LENGTH
    assert stop not in outputs["late", 0].tokens[:9]
    assert models.judge.flips(requests[3], 0, outputs["late", 0], [stop]) == []


@pytest.mark.few(3)
@pytest.mark.parametrize("ahead", AHEAD)
def test_logits_that_are_not_finite_end_their_request_alone(models, ahead, monkeypatch) -> None:
    model = models.runner.stages[0].model
    at = next(i for i, w in enumerate(plan_model(model.config, model.dtype).weights) if w.path == ("embed",))
    weights = list(model.weights)
    poison = 123
    weights[at] = weights[at].at[poison].set(jnp.nan)
    monkeypatch.setattr(models.runner.stages[0], "model", replace(model, weights=tuple(weights)))
    assert not any(poison in [*s.prompt_token_ids] for s in SUBJECTS)
    bad = [
        GenerateRequest("bad", [1, 2, poison, 4, 5], greedy(20)),
        GenerateRequest("bad choices", [*range(1, 9), poison, 10], seeded(20, 3, n=2)),
        GenerateRequest("bad with logprobs", [poison], seeded(20, 3, logprobs=2, prompt_logprobs=1)),
    ]
    healthy = [
        s for s in SUBJECTS if not any(poison in models.alone[s.request_id, i].tokens for i in range(s.sampling.n))
    ]
    assert len(healthy) > 4
    core = make_core(models.runner, ahead=ahead)
    for name in ("", " again"):
        broken = [replace(request, request_id=request.request_id + name) for request in bad]
        outputs = drive(core, [*broken, *healthy])
        for request in broken:
            for index in range(request.sampling.n):
                output = outputs[request.request_id, index]
                assert (output.reason, output.tokens) == (FinishReason.ERROR, [])
                assert output.error
    monkeypatch.undo()
    assert_same(models, {key: output for key, output in outputs.items() if key in models.alone}, healthy)


def test_a_stop_string_ends_a_sequence_where_it_is_told_to() -> None:
    """`stop` comes late: what overran is dropped, and the others do not notice."""
    models = bench("full")
    core = make_core(models.runner, ahead=3)
    told = {}

    def between(core: EngineCore, number: int) -> None:
        if number == 12 and not told:
            told["done"] = True
            core.stop("choices", 2)
            core.abort("short")

    outputs = drive(core, SUBJECTS, between)
    stopped = outputs["choices", 2]
    assert stopped.reason == FinishReason.STOP
    assert stopped.tokens == models.alone["choices", 2].tokens[: len(stopped.tokens)]
    assert outputs["short", 0].reason == FinishReason.ABORT
    skipped: dict[tuple[str, int], Output] = dict(outputs)
    for key, output in skipped.items():
        if key not in (("choices", 2), ("short", 0)):
            assert output.tokens == models.alone[key].tokens or models.judge.flips(
                next(s for s in SUBJECTS if s.request_id == key[0]), key[1], output
            )
