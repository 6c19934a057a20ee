"""Copies of experts change nothing, from a checkpoint and from a folder of leaves, against what transformers computed.

On one device: where experts lie is a matter of weights alone.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.declared import read_declared
from jaxinfer.models.loaded import load_model
from tests.convert.conversions import converted

from .goldens import GOLDENS
from .paged import ODD_CHUNKS, PagedModel, run_paged


def config_of(family: str) -> DecoderConfig:
    return parse_config(json.loads((GOLDENS / family / "config.json").read_text()))


def check_logits(folder: Path, config: DecoderConfig, golden: str) -> None:
    with np.load(GOLDENS / golden / "golden.npz") as known:
        token_ids, wanted = known["token_ids"], known["logits"]
    model = load_model(folder, config, dtype=jnp.dtype(jnp.float32))
    slots = {array.shape[0] for array in model.weights if array.ndim in (3, 5)}
    assert max(kind.experts.slots for kind in config.layers if kind.experts) in slots
    for row in run_paged(PagedModel(model), token_ids, ODD_CHUNKS):
        np.testing.assert_allclose(row, wanted, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(
    "family", ["qwen3_moe", *(pytest.param(name, marks=pytest.mark.long) for name in ("gpt_oss", "glm4_moe"))]
)
def test_a_checkpoint(family: str):
    """Experts in tensors of their own; fused ones with biases; layers without experts, shared ones and groups."""
    config = config_of(family)
    count = max(kind.experts.count for kind in config.layers if kind.experts)
    check_logits(GOLDENS / family, config.over(1, 1, 2, count // 2 * 2), family)


@pytest.mark.long
def test_leaves(tmp_path: Path):
    folder = converted(GOLDENS / "qwen3_moe", tmp_path / "out", "orbax")
    check_logits(folder, read_declared(folder).config.over(1, 1, 2, 2), "qwen3_moe")


def test_what_cannot_be_copied():
    config = config_of("mixtral")
    (count,) = {kind.experts.count for kind in config.layers if kind.experts}
    with pytest.raises(
        ParameterError, match=rf"redundant_experts: {count} experts and 1 .* over 2 devices; 0 or 2 can"
    ):
        config.over(1, 1, 2, 1)
    with pytest.raises(ParameterError, match=f"redundant_experts: {count + 2} must not be more than the {count} exp"):
        config.over(1, 1, 2, count + 2)
    with pytest.raises(ParameterError, match="redundant_experts: 2: the model has no experts; 0 is allowed"):
        config_of("llama3").over(1, 1, 2, 2)
    assert config.over(1, 1, 2, 0) == config
