"""Heads and vocabularies that do not divide over a mesh: copied heads, heads of zeros and rows of zeros change nothing.

On one device, against what transformers computed: where heads lie is a matter of weights alone.
"""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.head_spread import spread_heads
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import LoadedModel, load_model

from .goldens import GOLDENS
from .paged import ODD_CHUNKS, PagedModel, run_paged

VOCABULARY = 96

COPIED = ["llama3", "qwen2", "gpt_oss", "cohere", "internlm2", "olmo3"]
"""Of two KV heads: biases, sinks, a norm with a weight for each head, rows by head, a norm over all heads."""

EMPTY = ["mistral", "llama2", "phi3", "internlm2_dynamic", "gemma"]
"""Of four query heads and one or four KV heads: a tensor each, a fused one, rows by head, a tied table."""


def config_of(family: str) -> DecoderConfig:
    return parse_config(json.loads((GOLDENS / family / "config.json").read_text()))


def loaded(family: str, heads: int, vocabulary: int) -> LoadedModel:
    return load_model(GOLDENS / family, config_of(family).over(heads, vocabulary), dtype=jnp.dtype(jnp.float32))


def check_logits(family: str, heads: int, vocabulary: int) -> LoadedModel:
    with np.load(GOLDENS / family / "golden.npz") as golden:
        token_ids, wanted = golden["token_ids"], golden["logits"]
    model = loaded(family, heads, vocabulary)
    for row in run_paged(PagedModel(model), token_ids, ODD_CHUNKS):
        np.testing.assert_allclose(row[:, :VOCABULARY], wanted, atol=1e-4)
        assert not row[:, VOCABULARY:].any() or model.config.head_bias
    return model


@pytest.mark.long
@pytest.mark.parametrize("family", [COPIED[0], *(pytest.param(name, marks=pytest.mark.long) for name in COPIED[1:])])
def test_copied_kv_heads(family: str):
    model = check_logits(family, 4, 4)
    assert {kind.mixer.num_kv_heads for kind in model.config.layers} == {4}
    assert {kind.mixer.num_heads for kind in model.config.layers} == {4}
    assert model.kv_shape(0, 2, 4)[-2] == 4


@pytest.mark.long
@pytest.mark.parametrize("family", [EMPTY[0], *(pytest.param(name, marks=pytest.mark.long) for name in EMPTY[1:])])
def test_heads_and_rows_of_zeros(family: str):
    model = check_logits(family, 5, 5)
    assert {kind.mixer.num_heads for kind in model.config.layers} == {5}
    assert model.config.table_shape[0] == 100


@pytest.mark.parametrize(
    ("query_heads", "kv_heads", "shards", "found"),
    [
        (14, 2, 4, (16, 4)),
        (28, 4, 8, (32, 8)),
        (32, 8, 16, (32, 16)),
        (8, 1, 8, (8, 8)),
        (71, 1, 8, (72, 8)),
        (9, 3, 2, (12, 4)),
        (40, 10, 4, (40, 20)),
    ],
)
def test_the_fewest_heads_that_divide(query_heads: int, kv_heads: int, shards: int, found: tuple[int, int]):
    """Every query head has a place of its own, beside the KV head that it reads in the checkpoint."""
    spread = spread_heads(query_heads, kv_heads, shards)
    assert spread is not None
    assert (spread.num_heads, spread.num_kv_heads) == found
    assert spread.num_kv_heads % shards == 0
    placed = [head for head in spread.query_order if head is not None]
    assert sorted(placed) == list(range(query_heads))
    for place, head in enumerate(spread.query_order):
        if head is not None:
            assert spread.kv_order[place // spread.group_size] == head // (query_heads // kv_heads)


@pytest.mark.parametrize(("query_heads", "kv_heads", "shards"), [(4, 4, 8), (4, 1, 3), (6, 6, 5)])
def test_too_many_empty_heads_are_refused(query_heads: int, kv_heads: int, shards: int):
    with pytest.raises(ParameterError, match=f"{query_heads} query heads on {kv_heads} KV heads .* over {shards}"):
        spread_heads(query_heads, kv_heads, shards)


def test_heads_that_divide_stay():
    config = config_of("llama3")
    assert config.over(2, 1) == config


def test_heads_normed_together_get_no_empty_ones():
    with pytest.raises(ParameterError, match="normed together"):
        config_of("olmo2").over(5, 1)


def test_empty_heads_and_scales_of_groups():
    """Heads of 8 channels, of which 32 share a scale."""
    with pytest.raises(ParameterError, match="in groups of 32"):
        config_of("llama2").quantised("int4").over(5, 1)


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
@pytest.mark.long
def test_quantised_weights_have_the_same_heads(scheme: str):
    """Logits of a model in few bits are those of the same one whose heads lie elsewhere."""
    folder, prompt = GOLDENS / "mistral", np.arange(20, 40)
    config = config_of("mistral").quantised(scheme)
    as_they_are, spread = (load_model(folder, one, dtype=jnp.dtype("float32")) for one in (config, config.over(5, 5)))
    want, got = (run_paged(PagedModel(model), prompt, ODD_CHUNKS)[0] for model in (as_they_are, spread))
    np.testing.assert_allclose(got[:, :VOCABULARY], want, atol=1e-4)
