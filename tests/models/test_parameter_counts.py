"""Sizes of real models, as planned from their config.json files, against those that were published."""

import json
import math

import jax.numpy as jnp
import pytest

from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import plan_model
from tests.material import material

# Billions. MiniCPM's are published without the embedding.
WHOLE = {"internlm": 7.32, "internlm2": 7.74, "internlm2_5_7b": 7.74, "deepseek": 16.38}
WITHOUT_EMBEDDING = {"minicpm_2b_sft_bf16": 2.44, "minicpm-moe-8x2b": 13.6}


@pytest.mark.parametrize(("name", "billions"), [*WHOLE.items(), *WITHOUT_EMBEDDING.items()])
def test_published_size(name: str, billions: float):
    config = parse_config(json.loads(material("configs", f"{name}.json").read_text()))
    plan = plan_model(config, jnp.dtype(jnp.bfloat16))
    count = sum(math.prod(weight.shape) for weight in (*plan.weights, *plan.head))
    if name in WITHOUT_EMBEDDING:
        count -= config.vocab_size * config.hidden_size
    assert count / 1e9 == pytest.approx(billions, rel=2e-3)
