"""Which engines run their layers as a loop."""

import pytest

from jaxinfer.layers.stack import Layout
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from jaxinfer.runner.tuning.layer_layout import layer_layout

TP8 = MeshConfig({"tensor": 8})
INNER = MeshConfig({"tensor": 2}, ShardingRules(kv_heads=(), q_per_kv=("tensor",)))
"""An axis behind a matrix's first is split."""


@pytest.mark.parametrize(
    ("platform", "mesh", "layout"),
    [
        ("tpu", TP8, "stacked"),
        ("tpu", ONE_DEVICE, "unrolled"),
        ("gpu", TP8, "unrolled"),
        ("cpu", TP8, "stacked"),
        ("cpu", ONE_DEVICE, "stacked"),
        ("cpu", INNER, "unrolled"),
        ("tpu", INNER, "unrolled"),
    ],
)
def test_layers_are_stacked_where_that_copies_no_weights(platform: str, mesh: MeshConfig, layout: Layout) -> None:
    assert layer_layout("auto", platform, mesh) == layout
    assert layer_layout("on", platform, mesh) == "stacked"
    assert layer_layout("off", platform, mesh) == "unrolled"
