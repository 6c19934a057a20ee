"""An EAGLE-3 head in training computes what it computes when it drafts; and what is written can be loaded."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from demo_training.eagle3 import HeadTrainee, frequent_tokens
from demo_training.tokens import Document, pack
from flax import nnx
from safetensors.numpy import load_file
from train_eagle3 import raw_config, write_head

from jaxinfer import LLM, SamplingParams
from jaxinfer.build import DEMO_FOLDER
from jaxinfer.errors import ModelError
from jaxinfer.model_config.eagle3 import parse_eagle3
from jaxinfer.model_config.model_files import read_config
from jaxinfer.models.eagle3_checkpoint import declared_eagle3, load_eagle3
from tests.models.eagle3_folder import RAW, random_tensors
from tests.models.eagle3_folder import write_head as write_random
from tests.models.eagle3_numpy import NumpyEagle3
from tests.runner.tiny import random_prompt, tiny_model

RNG = np.random.default_rng(0)
DOCUMENTS = [Document(random_prompt(RNG, size), [False] + [True] * (size - 1)) for size in (9, 6, 12)]
BATCH = pack([DOCUMENTS[:2], DOCUMENTS[2:]], 16)
COLUMNS = np.sort(RNG.choice(300, 120, replace=False))


@pytest.fixture(scope="module")
def trainee() -> HeadTrainee:
    target = tiny_model()
    return HeadTrainee(target, parse_eagle3(RAW, target.config), COLUMNS, 3)


def test_steps_of_training_are_those_of_drafting(trainee: HeadTrainee, tmp_path: Path) -> None:
    target, params = tiny_model(), trainee.init(0)
    write_head(tmp_path, RAW, trainee, params, COLUMNS)
    tensors = load_file(tmp_path / "model.safetensors")
    embedding = target.build(target.weights).embed
    assert isinstance(embedding, nnx.Param)
    numpy = NumpyEagle3(RAW, tensors | {"embed_tokens.weight": np.asarray(embedding[...])})
    taught = trainee.taught(target.weights, BATCH)
    found = trainee.scores(params, taught.tapped, BATCH)
    for row, start, document in ((0, 0, DOCUMENTS[0]), (0, 9, DOCUMENTS[1]), (1, 0, DOCUMENTS[2])):
        size = len(document.ids)
        parts = [np.asarray(x, np.float64).reshape(2, 16, -1)[row, start : start + size - 1] for x in taught.tapped]
        features, tokens = numpy.features(parts), np.array(document.ids[1:])
        for place in range(3, size - 1):
            hidden = features[: place - 1]
            for step in range(3):
                out = numpy.run(hidden, tokens[: len(hidden)])[-1:]
                right = numpy.logits(out)[0]
                at = start + len(hidden) - 1
                np.testing.assert_allclose(found[step][row, at], right, atol=0.02 * np.abs(right).max())
                hidden = np.concatenate([hidden, out])


def test_what_is_written_is_what_was_trained(trainee: HeadTrainee, tmp_path: Path) -> None:
    target = tiny_model()
    write_head(tmp_path, RAW, trainee, trainee.init(0), COLUMNS)
    head = load_eagle3(tmp_path, declared_eagle3(tmp_path, target.config), dtype=jnp.dtype(jnp.float32))
    np.testing.assert_array_equal(head.head[1], COLUMNS)
    np.testing.assert_allclose(head.head[0], target.head[0][COLUMNS], rtol=0.01)


def test_the_target_teaches_the_draft_vocabulary(trainee: HeadTrainee) -> None:
    target = tiny_model()
    taught = trainee.taught(target.weights, BATCH)
    np.testing.assert_allclose(np.asarray(taught.likely).sum(axis=-1), 1, atol=1e-5)
    inside = np.asarray(taught.inside)
    assert not inside[0, 8], "nothing follows the end of a text"
    assert (inside[0, :8] > 0).all()
    loss, agreed = trainee.loss(trainee.init(0), taught, BATCH)
    assert np.isfinite(loss)
    assert agreed.shape == (3,)


def test_frequent_tokens_are_those_that_are_said() -> None:
    said = set(BATCH.targets[BATCH.weights > 0].tolist())
    assert set(frequent_tokens(iter([BATCH]), len(said)).tolist()) == said


@pytest.mark.long
def test_an_engine_drafts_with_a_head(tmp_path: Path) -> None:
    """Of random weights: few drafts are kept, and texts are the same."""
    raw = raw_config(read_config(DEMO_FOLDER), 400)
    write_random(tmp_path, raw, random_tensors(raw))
    asked = {"method": "eagle3", "model": str(tmp_path), "num_speculative_tokens": 2}
    prompts, answers = ["The capital of France is", "1 2 3 4 5"], []
    for config in (None, asked):
        sizes: dict[str, Any] = {"max_num_seqs": 1, "max_model_len": 64, "speculative_config": config}
        llm = LLM("demo", dtype="float32", compile="lazy", **sizes)
        found = llm.generate(prompts, SamplingParams(temperature=0.7, seed=3, max_tokens=24, ignore_eos=True))
        answers.append([output.outputs[0].token_ids for output in found])
        drafts = llm.engine.stats().drafts.draft_tokens
        llm.close()
    assert answers[0] == answers[1]
    assert drafts > 0
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=str(tmp_path)):
        LLM("demo", dtype="float32", max_num_seqs=2, speculative_config=asked)
