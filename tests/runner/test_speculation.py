"""Speculation gives what plain decoding gives, on the real runner; wrong rules do not."""

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.engine.types import FinishReason, GenerateRequest
from jaxinfer.runner import speculate
from jaxinfer.runner.draft_model import with_draft
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.sampler import adjust
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Method, Speculation
from tests.engine.outputs import Outputs
from tests.models.eagle3_folder import tiny_head
from tests.runner.tiny import Judge, check_all, drive, make_core, near_model, random_prompt, tiny_model, tiny_shapes

EOS = (9,)


def standing() -> int:
    """With such a clock every step drafts."""
    return 0


def made(tokens: int, method: Method = "ngram", **sizes: Any) -> JaxRunner:
    """tokens: drafts of a row; 0 for none."""
    model = tiny_model((None, 12))
    drafting = Speculation(tokens, 1, 3, method) if tokens else None
    if method == "draft_model":
        model = with_draft(model, near_model(model))
    elif method == "eagle3":
        model = with_draft(model, tiny_head(model))
    shapes = tiny_shapes(model, **{"max_num_seqs": 4, "max_num_batched_tokens": 32, **sizes}, drafting=drafting)
    runner = JaxRunner(model, shapes)
    runner.warm_up()
    return runner


runner = cache(made)


def repeating(seed: int, count: int) -> list[int]:
    """A prompt that says a few tokens over and over."""
    return (random_prompt(np.random.default_rng(seed), 3) * count)[:count]


def params(**changes) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 30, "temperature": 1.0, "seed": 5, "ignore_eos": True, **changes})


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


def check_equal(plain: Outputs, found: Outputs) -> None:
    assert plain.keys() == found.keys()
    for key, output in plain.items():
        told = found[key]
        assert (told.tokens, told.reason, told.stopped_by) == (output.tokens, output.reason, output.stopped_by), key
        assert len(told.logprobs) == len(output.logprobs)
        for one, other in zip(told.logprobs, output.logprobs, strict=True):
            assert (one.token_id, one.rank) == (other.token_id, other.rank)
            assert abs(one.logprob - other.logprob) < 1e-4


def run(
    tokens: int, asked: list[GenerateRequest], ahead: int = 1, method: Method = "ngram", **sizes: Any
) -> tuple[Outputs, int]:
    """Outputs, and how many drafts were kept."""
    core = make_core(runner(tokens, method, **sizes), ahead=ahead, eos=EOS, clock=standing)
    found = drive(core, asked)
    return found, core.stats().accepted_tokens


METHODS: tuple[Method, ...] = ("ngram", "draft_model")


def test_tokens_are_those_of_plain_decoding_with_a_head() -> None:
    """Its weights are random: hardly a draft is kept."""
    found, _ = run(3, requests(), method="eagle3")
    check_equal(run(0, requests())[0], found)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("tokens", "ahead"), [(1, 1), (3, 0), (3, 1), (3, 3), (8, 1)])
def test_tokens_are_those_of_plain_decoding(tokens: int, ahead: int, method: Method) -> None:
    plain, none = run(0, requests(), ahead)
    compiles = runner(tokens, method).compiles_after_ready
    found, kept = run(tokens, requests(), ahead, method)
    assert runner(tokens, method).compiles_after_ready == compiles
    check_all(Judge(runner(0).model), requests(), found, EOS)
    check_equal(plain, found)
    assert none == 0
    assert kept > 30
    assert found["stops", 0].reason is FinishReason.STOP


@pytest.mark.parametrize("rows", [3, 8])
def test_any_number_of_rows(rows: int) -> None:
    plain, _ = run(0, requests(), max_num_seqs=rows)
    check_equal(plain, run(3, requests(), max_num_seqs=rows)[0])


@pytest.mark.parametrize("method", METHODS)
def test_few_blocks_preempt_rows_that_draft(method: Method) -> None:
    sizes: dict[str, Any] = {"blocks": 24}
    core = make_core(made(3, method, **sizes), ahead=1, eos=EOS, clock=standing, caching=False)
    plain = drive(make_core(made(0, **sizes), ahead=1, eos=EOS, caching=False), requests())
    found = drive(core, requests())
    check_equal(plain, found)
    assert core.stats().preemptions > 0
    assert core.stats().accepted_tokens > 0


def test_a_long_prompt_is_known_to_drafts_whole_also_from_the_cache() -> None:
    """Its beginning, which is in blocks of an earlier request, is what its end repeats."""
    rng = np.random.default_rng(3)
    prompt = random_prompt(rng, 30)
    subject = GenerateRequest("again", prompt + prompt[:2], params(temperature=0.0, logit_bias={prompt[2]: 50.0}))
    core = make_core(runner(3), ahead=1, eos=EOS, clock=standing)
    first = drive(core, [subject])
    again = drive(core, [subject])
    check_equal(first, again)
    assert core.stats().prefix_hits > 0
    assert core.stats().accepted_at[0] > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_fault_among_drafts(ahead: int, method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device forgets everything; what rows have said comes back with them."""
    plain, _ = run(0, requests(), ahead)
    device, calls = runner(3, method), []

    def burst(step, burst=device.burst):
        calls.append(step)
        if len(calls) in (3, 11):
            raise RuntimeError("the device is gone")
        return burst(step)

    monkeypatch.setattr(device, "burst", burst)
    core = make_core(device, ahead=ahead, eos=EOS, clock=standing)
    check_equal(plain, drive(core, requests()))
    assert core.stats().step_faults == 2
    assert core.stats().accepted_tokens > 30


@pytest.mark.parametrize("at_once", [4, 12])
def test_rows_of_many_positions_are_sampled_in_parts(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row at a time, and three, which do not divide four."""
    plain, _ = run(0, requests())
    monkeypatch.setattr(speculate, "_AT_ONCE", at_once)
    found = drive(make_core(made(3), ahead=1, eos=EOS, clock=standing), requests())
    check_equal(plain, found)


def keep_all(drafts: jax.Array, count: jax.Array, tokens: jax.Array) -> jax.Array:
    return count


def without_recount(penalised: jax.Array, *_: object) -> jax.Array:
    return penalised


def count_once(model, counts, slots, tokens, drawn, params):
    """Of tokens that a row gains at once only the first counts."""
    return COUNTED(model, counts, slots, tokens, drawn & (jnp.cumsum(drawn) == 1), params)


COUNTED = speculate.counted


@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [
        (speculate, "kept", keep_all),
        (adjust, "_recount", without_recount),
        (speculate, "counted", count_once),
    ],
)
def test_wrong_rules_are_seen(where, name: str, wrong: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = run(0, requests())
    monkeypatch.setattr(where, name, wrong)
    found = drive(make_core(made(3), ahead=1, eos=EOS, clock=standing), requests())
    with pytest.raises(AssertionError):
        check_equal(plain, found)


def test_a_shifted_uniform_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = run(0, requests())
    sampled = speculate.sampled_tokens

    def shifted(model, logits, counts, slots, own, positions, *rest, **more):
        return sampled(model, logits, counts, slots, own, positions + 1, *rest, **more)

    monkeypatch.setattr(speculate, "sampled_tokens", shifted)
    found = drive(make_core(made(3), ahead=1, eos=EOS, clock=standing), requests())
    with pytest.raises(AssertionError):
        check_equal(plain, found)


def test_kept_drafts_end_at_the_first_that_differs() -> None:
    for drafts in product(range(2), repeat=3):
        for count in range(4):
            tokens = jnp.array([[0, 1, 0, 1]])
            right = next((i for i in range(count) if drafts[i] != tokens[0, i]), count)
            assert int(speculate.kept(jnp.array([drafts]), jnp.array([count]), tokens)[0]) == right
