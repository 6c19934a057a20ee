"""Speculation gives what plain decoding gives, on the real runner; wrong rules do not."""

import os
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxinfer.engine.types import FinishReason, GenerateRequest
from jaxinfer.runner.drafting import speculate
from jaxinfer.runner.sampler import adjust
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Method
from tests.drafts.drafting import EOS, check_equal, fail_drafting_steps, params, repeating, runner, standing
from tests.engine.outputs import Outputs
from tests.runner.tiny import Judge, check_all, drive, make_core, random_prompt, twin, with_blocks
from tests.turns import one_of

PARAMETERS = {
    "greedy": {"temperature": 0.0},
    "seeded": {},
    "cold": {"temperature": 0.05},
    "top_k": {"temperature": 0.7, "top_k": 3},
    "top_p": {"temperature": 0.7, "top_p": 0.3},
    "min_p": {"temperature": 0.7, "min_p": 0.4},
    "repetition": {"temperature": 0.1, "repetition_penalty": 1.2},
    "penalties": {"temperature": 0.0, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "bias": {"temperature": 0.0, "logit_bias": {17: 9.0, 18: 8.5}},
    "counted": {"temperature": 0.0, "logit_bias": {17: 30.0}, "frequency_penalty": 2.0},
    "min_tokens": {"temperature": 0.0, "min_tokens": 12, "ignore_eos": False, "logit_bias": {9: 12.0}},
    "stops": {"stop_token_ids": tuple(range(30, 60))},
    "eos": {"ignore_eos": False, "logit_bias": {9: 3.0}},
    "choices": {"n": 3, "max_tokens": 9},
    "short": {"max_tokens": 2},
    "one": {"max_tokens": 1},
    "logprobs": {"logprobs": 3, "max_tokens": 20, "temperature": 0.1},
    "top_n_sigma": {"top_n_sigma": 1.0},
}


def requests(names=tuple(PARAMETERS)) -> list[GenerateRequest]:
    return [
        GenerateRequest(name, repeating(number, 5 + number % 9), params(**PARAMETERS[name]))
        for number, name in enumerate(names)
    ]


def run(
    tokens: int, asked: list[GenerateRequest], ahead: int = 1, method: Method = "ngram", **sizes: Any
) -> tuple[Outputs, int]:
    """Outputs, and how many drafts were kept."""
    core = make_core(runner(tokens, method, **sizes), ahead=ahead, eos=EOS, clock=standing)
    found = drive(core, asked)
    return found, core.stats().drafts.accepted_tokens


@cache
def plain() -> Outputs:
    """What plain decoding gives, every token of which a judge finds right."""
    found, kept = run(0, requests())
    check_all(Judge(runner(0).stages[0].model), requests(), found, EOS)
    assert found["stops", 0].reason is FinishReason.STOP
    assert kept == 0
    return found


METHODS: tuple[Method, ...] = ("ngram", "draft_model")


@pytest.mark.long
def test_tokens_are_those_of_plain_decoding_with_a_head() -> None:
    """Its weights are random: hardly a draft is kept."""
    found, _ = run(3, requests(), method="eagle3")
    check_equal(plain(), found)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("method", "tokens", "ahead"),
    one_of(
        2, [*((method, 3, ahead) for method in METHODS for ahead in (1, 0, 3)), ("ngram", 1, 1), ("draft_model", 8, 1)]
    ),
)
def test_tokens_are_those_of_plain_decoding(tokens: int, ahead: int, method: Method) -> None:
    compiles = runner(tokens, method).status().compiles_after_ready
    found, kept = run(tokens, requests(), ahead, method)
    assert runner(tokens, method).status().compiles_after_ready == compiles or tokens != 3
    check_equal(plain(), found)
    assert kept > 30


@pytest.mark.long
def test_any_number_of_rows() -> None:
    """Three: the largest program is for no power of two."""
    check_equal(plain(), run(3, requests(), max_num_seqs=3)[0])


@pytest.mark.parametrize("method", METHODS)
def test_few_blocks_preempt_rows_that_draft(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    device = with_blocks(monkeypatch, runner(3, method), 24)
    core = make_core(device, ahead=1, eos=EOS, clock=standing, caching=False)
    found = drive(core, requests())
    check_equal(plain(), found)
    assert core.stats().scheduler.preemptions > 0
    assert core.stats().drafts.accepted_tokens > 0


def test_a_long_prompt_is_known_to_drafts_whole_also_from_the_cache() -> None:
    """Its beginning, which is in blocks of an earlier request, is what its end repeats."""
    rng = np.random.default_rng(3)
    prompt = random_prompt(rng, 30)
    subject = GenerateRequest("again", prompt + prompt[:2], params(temperature=0.0, logit_bias={prompt[2]: 50.0}))
    core = make_core(runner(3), ahead=1, eos=EOS, clock=standing)
    first = drive(core, [subject])
    again = drive(core, [subject])
    check_equal(first, again)
    assert core.stats().admission.prefix_hits > 0
    assert core.stats().drafts.accepted_at[0] > 0


@pytest.mark.few(1)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_fault_among_drafts(ahead: int, method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device forgets everything; what rows have said comes back with them."""
    device = runner(3, method)
    fail_drafting_steps(monkeypatch, device, (3, 11))
    core = make_core(device, ahead=ahead, eos=EOS, clock=standing)
    check_equal(plain(), drive(core, requests()))
    assert core.stats().core.step_faults == 2
    assert core.stats().drafts.accepted_tokens > 30


@pytest.fixture
def right() -> Outputs:
    """What plain decoding gives. Programs that other tests use, too, are traced before a test changes a rule."""
    runner(3)
    return plain()


@pytest.mark.long
@pytest.mark.parametrize("at_once", [4, 12])
def test_rows_of_many_positions_are_sampled_in_parts(
    at_once: int, right: Outputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row at a time, and three, which do not divide four."""
    monkeypatch.setattr(speculate, "SAMPLED_AT_ONCE", at_once)
    check_equal(right, run_traced_anew())


def run_traced_anew() -> Outputs:
    """By the programs of `runner(3)`, but for the one that drafts for more than one row."""
    device = twin(runner(3), anew=[("speculate", 4)])
    return drive(make_core(device, ahead=1, eos=EOS, clock=standing), requests())


def keep_all(drafts: jax.Array, count: jax.Array, tokens: jax.Array) -> jax.Array:
    return count


def without_recount(penalised: jax.Array, *_: object) -> jax.Array:
    return penalised


def count_once(model, counts, slots, tokens, drawn, params):
    """Of tokens that a row gains at once only the first counts."""
    return COUNTED(model, counts, slots, tokens, drawn & (jnp.cumsum(drawn) == 1), params)


COUNTED = speculate.counted


@pytest.mark.long
@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [
        (speculate, "kept", keep_all),
        (adjust, "_recount", without_recount),
        (speculate, "counted", count_once),
    ],
)
def test_wrong_rules_are_seen(
    where, name: str, wrong: Callable, right: Outputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    found = run_traced_anew()
    with pytest.raises(AssertionError):
        check_equal(right, found)


@pytest.mark.long
def test_a_shifted_uniform_is_seen(right: Outputs, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = speculate.sampled_tokens

    def shifted(model, logits, counts, slots, own, positions, *rest, **more):
        return sampled(model, logits, counts, slots, own, positions + 1, *rest, **more)

    monkeypatch.setattr(speculate, "sampled_tokens", shifted)
    found = run_traced_anew()
    with pytest.raises(AssertionError):
        check_equal(right, found)


@pytest.mark.long
def test_kept_drafts_end_at_the_first_that_differs() -> None:
    for drafts in product(range(2), repeat=3):
        for count in range(4):
            tokens = jnp.array([[0, 1, 0, 1]])
            right = next((i for i in range(count) if drafts[i] != tokens[0, i]), count)
            assert int(speculate.kept(jnp.array([drafts]), jnp.array([count]), tokens)[0]) == right


@pytest.mark.long
def test_draws_follow_the_probabilities_of_the_model() -> None:
    """Chi-squared over answers of three tokens, each of the three likeliest, the last two of which may be drafted.
    JAXINFER_TEST_SAMPLES: how many answers."""
    device = runner(3, "draft_model")
    judge, prompt, count = (
        Judge(device.stages[0].model),
        repeating(1, 12),
        int(os.environ.get("JAXINFER_TEST_SAMPLES", "4000")),
    )
    core = make_core(device, clock=standing)
    seen: Counter[tuple[int, ...]] = Counter()
    for first in range(0, count, 1000):
        asked = [SamplingParams(top_k=3, max_tokens=3, ignore_eos=True, seed=first + i) for i in range(1000)]
        requests = [GenerateRequest(str(params.seed), prompt, params) for params in asked]
        seen.update(tuple(output.tokens) for output in drive(core, requests).values())
    expected = {key: count * p for key, p in _answers(judge, prompt, 3).items()}
    assert seen.keys() <= expected.keys()
    likely = [key for key, number in expected.items() if number >= 5]
    statistic = sum((seen[key] - expected[key]) ** 2 / expected[key] for key in likely)
    assert core.stats().drafts.accepted_tokens > count // 2
    assert len(likely) > 10
    assert statistic < scipy.stats.chi2.isf(0.001, len(likely) - 1)


def _answers(judge: Judge, known: list[int], left: int) -> dict[tuple[int, ...], float]:
    """The probability of each answer of `left` tokens, each of the three likeliest."""
    if not left:
        return {(): 1.0}
    logits = judge.logits(known)[-1].astype(np.float64)
    top = np.argsort(logits)[-3:].tolist()
    weights = np.exp(logits[top] - logits.max())
    return {
        (token, *rest): weight * p
        for token, weight in zip(top, (weights / weights.sum()).tolist(), strict=True)
        for rest, p in _answers(judge, [*known, token], left - 1).items()
    }
