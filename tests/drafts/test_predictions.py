"""Drafts from predictions, on the real runner: the same tokens in fewer steps, and counts that add up."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Speculation
from tests.drafts.drafting import fail_drafting_steps, runner, standing
from tests.engine.outputs import Output, Outputs
from tests.runner.ngram_search import searched_with
from tests.runner.tiny import drive, make_core, random_prompt, with_blocks

CONTEXT = 96
NGRAM = Speculation(3, 1, 3)
GREEDY, DRAWN = {"temperature": 0.0}, {"temperature": 1.0, "seed": 5}


class Got(NamedTuple):
    outputs: Outputs
    steps: int
    preemptions: int


def run(
    asked: Sequence[GenerateRequest],
    tokens: int = 3,
    ahead: int = 0,
    caching: bool = True,
    device: JaxRunner | None = None,
) -> Got:
    """tokens: drafts of a row. device: another than all others have."""
    device, is_ready = device or runner(tokens), device is None and tokens > 0
    core = make_core(device, ahead=ahead, clock=standing, caching=caching)
    compiles = device.status().compiles_after_ready
    outputs = drive(core, asked)
    stats = core.stats()
    assert device.status().compiles_after_ready == compiles or not is_ready
    return Got(outputs, stats.core.steps, stats.scheduler.preemptions)


def ask(name: str, params: dict, prompt: int = 12, tokens: int = 30, n: int = 1) -> GenerateRequest:
    ids = random_prompt(np.random.default_rng(sum(map(ord, name))), prompt)
    return GenerateRequest(name, ids, SamplingParams(max_tokens=tokens, n=n, **params))


@cache
def plain(greedy: bool) -> tuple[list[GenerateRequest], Outputs]:
    """Requests whose prompts are one step, and what plain decoding gives to them."""
    params = GREEDY if greedy else DRAWN
    asked = [ask("a", params, 6), ask("b", params, 7, 40), ask("c", params, 3, 21)]
    return asked, run(asked, 0).outputs


def right(tokens: list[int]) -> list[int]:
    return tokens


def edited(tokens: list[int]) -> list[int]:
    """Every seventh token is another one, and a few are missing."""
    return [token if place % 7 else (token + 1) % 300 for place, token in enumerate(tokens) if place not in (10, 11)]


def wrong(tokens: list[int]) -> list[int]:
    """Begins as the output does, and goes on otherwise."""
    return [token if place % 3 else (token + 1) % 300 for place, token in enumerate(tokens)]


def too_long(tokens: list[int]) -> list[int]:
    """Longer than the context."""
    return tokens + [(7 * place) % 300 for place in range(150)]


def other(tokens: list[int]) -> list[int]:
    """A text of its own."""
    return random_prompt(np.random.default_rng(len(tokens)), 25)


def with_predictions(greedy: bool, change: Callable[[list[int]], list[int]]) -> list[GenerateRequest]:
    """All requests but the last with a prediction, made from what they are to say."""
    asked, outputs = plain(greedy)
    predicted = [replace(one, prediction=change(outputs[one.request_id, 0].tokens)) for one in asked[:-1]]
    return [*predicted, asked[-1]]


def counted(request: GenerateRequest, output: Output) -> tuple[int, int]:
    """Drafts from the prediction that are kept and dropped, where every token but the first is drafted for."""
    prompt, end = list(request.prompt_token_ids), len(request.prompt_token_ids) + len(output.tokens)
    if not len(request.prediction):
        return 0, 0
    places = [*prompt[-NGRAM.longest :], *request.prediction][: CONTEXT - len(prompt)]
    known, accepted, rejected = prompt + output.tokens[:1], 0, 0
    while len(known) < end:
        lost = max(0, len(places) - (CONTEXT - len(known)))  # where outputs lie now
        aligned = len(known) - len(prompt) + min(len(prompt), NGRAM.longest) - 1
        drafts, predicted, _ = searched_with(known, places[lost:], aligned - lost, NGRAM)
        drafts, follow = drafts[: end - len(known) - 1], output.tokens[len(known) - len(prompt) :]
        kept = next((i for i, pair in enumerate(zip(drafts, follow, strict=False)) if pair[0] != pair[1]), len(drafts))
        if predicted:
            accepted, rejected = accepted + kept, rejected + len(drafts) - kept
        known += follow[: kept + 1]
    return accepted, rejected


def check_tokens(found: Outputs, wanted: Outputs) -> None:
    for key, output in wanted.items():
        assert (found[key].tokens, found[key].reason) == (output.tokens, output.reason), key


@pytest.mark.few(3)
@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("change", [right, edited, wrong, too_long, other])
def test_tokens_are_those_without_a_prediction_and_counts_are_those_of_a_search(change, greedy: bool) -> None:
    asked, wanted = with_predictions(greedy, change), plain(greedy)[1]
    found = run(asked).outputs
    check_tokens(found, wanted)
    counts = check_counts(asked, found)
    assert counts["c", 0] == (0, 0)
    if change in (right, too_long):
        assert counts["a", 0][0] > counts["a", 0][1]
    if change is edited:
        assert counts["a", 0][0] > 10
    check_tokens(run(asked, ahead=1).outputs, wanted)


def check_counts(asked: Sequence[GenerateRequest], found: Outputs) -> dict[tuple[str, int], tuple[int, int]]:
    counts = {key: (output.accepted_prediction, output.rejected_prediction) for key, output in found.items()}
    assert counts == {
        (one.request_id, index): counted(one, found[one.request_id, index])
        for one in asked
        for index in range(one.sampling.n)
    }
    return counts


@pytest.mark.parametrize("ahead", [0, 1])
def test_each_sequence_of_a_request_has_the_prediction(ahead: int) -> None:
    subject = ask("b", DRAWN, n=3)
    wanted = run([subject], 0).outputs
    assert len({tuple(output.tokens) for output in wanted.values()}) == 3
    for index in range(3):
        predicted = replace(subject, prediction=wanted["b", index].tokens)
        found = run([predicted], ahead=ahead).outputs
        check_tokens(found, wanted)
        counts = check_counts([predicted], found) if not ahead else {}
        assert counts.get(("b", index), (21, 0)) == (21, 0)


@pytest.mark.parametrize("params", [GREEDY, DRAWN])
def test_a_right_prediction_takes_far_fewer_steps(params: dict) -> None:
    subject = ask("a", params, tokens=61)
    before = run([subject], 0)
    after = run([replace(subject, prediction=before.outputs["a", 0].tokens)])
    check_tokens(after.outputs, before.outputs)
    output = after.outputs["a", 0]
    assert (output.accepted_prediction, output.rejected_prediction) == (45, 0)
    assert after.steps == 1 + 60 // 4  # a step for the prompt, and four tokens in each of the others
    assert before.steps == 61


def test_outputs_that_reach_the_prediction_s_place_keep_their_drafts() -> None:
    """Prompt and output fill the context, and a prediction of the output's length does not fit beside the prompt."""
    subject = ask("a", DRAWN, 20, CONTEXT - 20)
    before = run([subject])
    after = run([replace(subject, prediction=before.outputs["a", 0].tokens)])
    check_tokens(after.outputs, before.outputs)
    assert after.outputs["a", 0].accepted_prediction >= 52
    assert after.steps < 24


def test_an_empty_prediction_is_none() -> None:
    subject = ask("a", DRAWN)
    before, after = run([subject]), run([replace(subject, prediction=[])])
    assert before == after


@pytest.mark.parametrize("ahead", [0, 1])
def test_rows_that_are_preempted_draft_from_their_predictions_again(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In steps that take all prompts at once."""
    params = {**DRAWN, "max_tokens": 40}
    asked = [GenerateRequest(name, ask(name, DRAWN).prompt_token_ids, SamplingParams(**params)) for name in "abcd"]
    wanted = run(asked, 0, caching=False).outputs
    predicted = [replace(one, prediction=wanted[one.request_id, 0].tokens) for one in asked]
    device = with_blocks(monkeypatch, runner(3, max_num_batched_tokens=64), 30)
    found = run(predicted, ahead=ahead, caching=False, device=device)
    check_tokens(found.outputs, wanted)
    assert found.preemptions > 0
    # Of each four tokens three are drafts, but where a row is preempted.
    assert all(output.accepted_prediction >= 20 for output in found.outputs.values())


def test_a_fault_leaves_predictions_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, wanted = with_predictions(False, right), plain(False)[1]
    device = runner(3)

    fail_drafting_steps(monkeypatch, device, (3,))
    found = run(asked, ahead=1).outputs
    check_tokens(found, wanted)
    assert found["a", 0].accepted_prediction > 15
