"""EAGLE-3 heads: equal to NumPy's, features of the target's layers, and folders that are refused."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.errors import ModelError
from jaxinfer.layers.dispatch import Dispatch
from jaxinfer.layers.param import held
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.eagle3 import default_layers
from jaxinfer.models.eagle3 import Eagle3Model, random_eagle3
from jaxinfer.models.eagle3_checkpoint import declared_eagle3, load_eagle3
from jaxinfer.models.loaded import random_model
from tests.models.dense import CONFIG, dense_attention
from tests.models.eagle3_folder import RAW, random_tensors, write_head
from tests.models.eagle3_numpy import NumpyEagle3, Tensors
from tests.runner.tiny import tiny_model

RNG = np.random.default_rng(1)
FLOAT32 = jnp.dtype("float32")


def loaded(folder: Path, raw: dict[str, Any], tensors: Tensors, target: DecoderConfig) -> Eagle3Model:
    write_head(folder, raw, tensors)
    return load_eagle3(folder, declared_eagle3(folder, target), dtype=FLOAT32)


def hidden_of(model: Eagle3Model, taken: list[np.ndarray], table: np.ndarray, tokens: np.ndarray) -> jax.Array:
    """taken: the target's hidden states, one array a layer."""

    def run(weights: Any, *given: jax.Array) -> jax.Array:
        head, positions = model.build_head(weights), jnp.arange(len(tokens))
        embedded = head.embedded(jnp.asarray(table), jnp.asarray(tokens))
        attend = dense_attention(model.config)
        return head(head.features(given), embedded, positions, (), attend)[0]

    return jax.jit(run)(model.weights, *map(jnp.asarray, taken))


@pytest.mark.few(8)
@pytest.mark.parametrize("norm_before_residual", [False, True])
@pytest.mark.parametrize("prefix", ["midlayer.", "layers.0."])
@pytest.mark.parametrize("embedding", [None, 32, 48])
def test_logits_are_those_of_numpy(
    tmp_path: Path, norm_before_residual: bool, prefix: str, embedding: int | None
) -> None:
    """embedding: the target's; or its own, of its own width."""
    width, target = embedding or 32, tiny_model()
    raw = RAW | {"hidden_size": width, "target_hidden_size": 32, "norm_before_residual": norm_before_residual}
    tensors = random_tensors(raw)
    table = RNG.standard_normal((300, width)).astype(np.float32)
    written = {name.replace("midlayer.", prefix): x for name, x in tensors.items()}
    own = {} if embedding is None else {"embed_tokens.weight": table}
    model = loaded(tmp_path, raw, written | own, target.config)
    assert model.eagle.own_embedding is (embedding is not None)
    right = NumpyEagle3(raw, tensors | {"embed_tokens.weight": table})
    taken = [RNG.standard_normal((20, 32)).astype(np.float32) for _ in range(3)]
    tokens = RNG.integers(0, 300, 20)
    hidden = hidden_of(model, taken, table if embedding is None else np.zeros((300, 1)), tokens)
    expected = right.run(right.features([np.asarray(x, np.float64) for x in taken]), tokens)
    np.testing.assert_allclose(hidden, expected, atol=2e-4)
    normed = model.build_head(model.weights).final_norm(hidden)
    found = np.asarray(model.target_logits(model.head, normed, 304))
    columns = np.arange(120) + tensors["d2t"]
    np.testing.assert_allclose(found[:, columns], right.logits(expected), atol=2e-3)
    assert set(np.flatnonzero(np.isfinite(found[0]))) == set(columns)
    assert not np.any(np.isfinite(found[:, np.setdiff1d(np.arange(304), columns)]))


@pytest.mark.few(1)
@pytest.mark.parametrize("layout", ["unrolled", "stacked"])
def test_taps_are_the_inputs_of_layers(layout: Any) -> None:
    """Of the first, of one within, and the output of the last."""
    model = random_model(CONFIG, dtype=FLOAT32, layout=layout)
    tokens, positions = jnp.arange(12), jnp.arange(12)
    decoder, attend = model.build(model.weights), dense_attention(CONFIG)
    run = decoder.run(tokens, positions, (), None, attend, Dispatch(), taps=(0, 4, 6))
    embedded = np.asarray(held(decoder.embed))[:12]
    np.testing.assert_array_equal(run.tapped[0], embedded)
    np.testing.assert_array_equal(run.tapped[2], run.hidden)
    other = random_model(CONFIG, dtype=FLOAT32)
    right = other.build(other.weights).run(tokens, positions, (), None, attend, Dispatch(), taps=(4,))
    np.testing.assert_allclose(run.tapped[1], right.tapped[0], atol=1e-5)
    assert np.abs(np.asarray(run.tapped[1] - run.tapped[0])).max() > 0.1


def test_layers_that_are_read(tmp_path: Path) -> None:
    assert default_layers(32) == (2, 16, 29)
    assert default_layers(2) == (2, 1, 0)
    ids = "eagle_aux_hidden_state_layer_ids"
    target = tiny_model((None,) * 6).config
    for more, layers in (
        ({}, (2, 3, 3)),
        ({ids: [0, 2, 6]}, (0, 2, 6)),
        ({"eagle_config": {ids: [0, 2, 5], "use_aux_hidden_state": True}}, (1, 3, 6)),
    ):
        folder = write_head(tmp_path, RAW | more, random_tensors(RAW))
        assert declared_eagle3(folder, target).layers == layers


def test_a_mapping_may_be_missing_where_all_tokens_are_drafted(tmp_path: Path) -> None:
    raw = RAW | {"draft_vocab_size": 300}
    tensors = random_tensors(raw)
    del tensors["d2t"], tensors["t2d"]
    model = loaded(tmp_path, raw, tensors, tiny_model().config)
    np.testing.assert_array_equal(model.head[1], np.arange(300))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "config.json: architectures must be LlamaForCausalLMEagle3 or"),
        ({"num_hidden_layers": 2}, "num_hidden_layers must be 1, not 2"),
        ({"vocab_size": 301}, "vocab_size is 301, and the target's is 300"),
        ({"target_hidden_size": 64}, "target_hidden_size is 64, and the target's is 32"),
        ({"hidden_size": 40}, "embed_tokens.weight is missing, and hidden_size 40 differs from the target's, 32"),
        ({"draft_vocab_size": 301}, "draft_vocab_size must be 1 to vocab_size, 300, not 301"),
        ({"draft_vocab_size": "x"}, "draft_vocab_size must be an integer"),
        ({"attention_bias": True}, "attention_bias is not supported in an EAGLE-3 head"),
        ({"norm_before_residual": 1}, "norm_before_residual must be true or false"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, "must be a list of 3 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}, "the target has 2 layers"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state must be true"),
        ({"unheard_of_scale": 3}, "unheard_of_scale"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_head(tmp_path / "head", RAW | changes, random_tensors(RAW))
    with pytest.raises(ModelError) as caught:
        declared_eagle3(folder, tiny_model().config)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)


def beyond(tensors: Tensors) -> None:
    tensors["d2t"][-1] = 200


def twice(tensors: Tensors) -> None:
    tensors["d2t"][1] = tensors["d2t"][0] - 1


def wrong_shape(tensors: Tensors) -> None:
    tensors["midlayer.self_attn.k_proj.weight"] = np.zeros((16, 32), np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (beyond, "tensor d2t maps drafts to ids beyond the target's vocabulary of 300"),
        (twice, "tensor d2t maps two drafts to the same id"),
        (wrong_shape, "tensor midlayer.self_attn.k_proj.weight has shape [16, 32]"),
        (lambda tensors: tensors.pop("d2t"), "tensor d2t is missing"),
        (lambda tensors: tensors.pop("fc.weight"), "tensor fc.weight is missing"),
        (lambda tensors: tensors.update(more=np.zeros(3, np.float32)), "tensor more has no place"),
        (lambda tensors: tensors.update(t2d=np.zeros(7, bool)), "tensor t2d has shape [7]"),
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    tensors = random_tensors(RAW)
    change(tensors)
    with pytest.raises(ModelError) as caught:
        loaded(tmp_path / "head", RAW, tensors, tiny_model().config)
    assert message in str(caught.value)
    assert str(tmp_path / "head") in str(caught.value)


def test_random_heads_are_spread_over_the_vocabulary(tmp_path: Path) -> None:
    folder = write_head(tmp_path, RAW, random_tensors(RAW))
    model = random_eagle3(declared_eagle3(folder, tiny_model().config), dtype=FLOAT32)
    columns = np.asarray(model.head[1])
    assert len(set(columns)) == 120
    assert columns.max() > 290
