"""A trained model against what transformers made of it: greedy ids and log-probabilities in float32."""

import json
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.engine.types import FinishReason, GenerateRequest
from jaxinfer.model_config.model_files import read_model_files
from jaxinfer.models.loaded import load_model
from jaxinfer.runner.jax_runner import JaxRunner
from tests.material import material
from tests.runner.tiny import Judge, check_all, check_logprobs, drive, greedy, make_core, seeded, tiny_shapes


@cache
def runner() -> JaxRunner:
    folder = material("models", "stories260K")
    model = load_model(folder, read_model_files(folder).config, dtype=jnp.dtype("float32"))
    made = JaxRunner(model, tiny_shapes(model, block_size=16, blocks=64, max_model_len=160))
    made.warm_up(when="lazy")
    return made


@cache
def reference() -> list[dict[str, Any]]:
    return json.loads(material("models", "stories260K", "greedy_reference.json").read_text())["cases"]


def requests(count: int = 64, **asked: Any) -> list[GenerateRequest]:
    return [
        GenerateRequest(f"r{i}", case["prompt_token_ids"], greedy(count, logprobs=1, **asked))
        for i, case in enumerate(reference())
    ]


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("ahead", [0, pytest.param(1, marks=pytest.mark.smoke), 3])
def test_greedy_ids_and_logprobs_are_the_references(ahead, chunk) -> None:
    core = make_core(runner(), ahead=ahead, eos=(2,), long_prefill_token_threshold=chunk)
    outputs = drive(core, requests())
    for i, case in enumerate(reference()):
        output = outputs[f"r{i}", 0]
        assert output.tokens == case["new_token_ids"]
        found = [entry.logprob for entry in output.logprobs]
        np.testing.assert_allclose(found, case["logprobs"], atol=1e-4)
        assert all(entry.rank == 1 for entry in output.logprobs)


@pytest.mark.long
def test_logprobs_of_whole_texts_are_the_references() -> None:
    """The reference's text as a prompt: every position is scored, in chunks of `max_scored`."""
    asked = [
        GenerateRequest(f"r{i}", [*case["prompt_token_ids"], *case["new_token_ids"]], greedy(1, prompt_logprobs=5))
        for i, case in enumerate(reference())
    ]
    outputs = drive(make_core(runner()), asked)
    judge = Judge(runner().stages[0].model, 160)
    for i, case in enumerate(reference()):
        output, start = outputs[f"r{i}", 0], len(case["prompt_token_ids"])
        assert output.prompt_logprobs is not None
        entries = [entry for entry in output.prompt_logprobs[start:] if entry is not None]
        assert [entry.token_id for entry in entries] == case["new_token_ids"]
        np.testing.assert_allclose([entry.logprob for entry in entries], case["logprobs"], atol=1e-4)
        check_logprobs(judge, asked[i], output)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_stops_at_its_end_of_sequence_ids(ahead) -> None:
    """Two ids that the texts hold are taken for ends."""
    ends = (reference()[0]["new_token_ids"][9], reference()[2]["new_token_ids"][20])
    outputs = drive(make_core(runner(), ahead=ahead, eos=ends), requests())
    for i, case in enumerate(reference()):
        tokens, output = case["new_token_ids"], outputs[f"r{i}", 0]
        at = next((at for at, token in enumerate(tokens) if token in ends), None)
        assert output.tokens == (tokens if at is None else tokens[: at + 1])
        assert output.reason == (FinishReason.LENGTH if at is None else FinishReason.STOP)
        assert output.stopped_by == (None if at is None else tokens[at])


@pytest.mark.few(1)
def test_sampled_texts_are_right_token_by_token() -> None:
    asked = [
        GenerateRequest(f"s{i}", case["prompt_token_ids"], seeded(60, i, n=2)) for i, case in enumerate(reference())
    ]
    outputs = drive(make_core(runner()), asked)
    check_all(Judge(runner().stages[0].model, 160), asked, outputs)
