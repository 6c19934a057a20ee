"""Which engines run their layers as a loop."""

import json

import numpy as np
import pytest

from jaxinfer.layers.stack import Layout
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.plan import plan_model
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from jaxinfer.runner.tuning.layer_layout import layer_layout
from tests.models.goldens import GOLDENS

TP8 = MeshConfig({"tensor": 8})
INNER = MeshConfig({"tensor": 2}, ShardingRules(kv_heads=(), q_per_kv=("tensor",)))
"""An axis behind a matrix's first is split."""


@pytest.mark.parametrize(
    ("family", "quantization", "platform", "mesh", "layout"),
    [
        ("llama3", "none", "tpu", TP8, "stacked"),
        ("llama3", "none", "tpu", ONE_DEVICE, "unrolled"),
        ("llama3", "none", "gpu", TP8, "unrolled"),
        ("llama3", "none", "cpu", TP8, "stacked"),
        ("llama3", "none", "cpu", ONE_DEVICE, "stacked"),
        ("minicpm_moe", "int4", "cpu", ONE_DEVICE, "stacked"),
        ("llama3", "none", "cpu", INNER, "unrolled"),
        ("llama3", "int8", "tpu", TP8, "stacked"),
        ("minicpm_moe", "none", "tpu", TP8, "stacked"),
        ("llama3", "none", "tpu", INNER, "unrolled"),
    ],
)
def test_layers_are_stacked_where_that_copies_no_weights(
    family: str, quantization: str, platform: str, mesh: MeshConfig, layout: Layout
) -> None:
    config = parse_config(json.loads((GOLDENS / family / "config.json").read_text()))
    plan = plan_model(config.quantised(quantization), np.dtype("float32"))
    assert layer_layout("auto", plan, platform, mesh) == layout
    assert layer_layout("on", plan, platform, mesh) == "stacked"
    assert layer_layout("off", plan, platform, mesh) == "unrolled"
