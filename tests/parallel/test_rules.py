"""Sharding rules: several mesh axes for one logical axis, and what cannot be split."""

from dataclasses import fields
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from jaxinfer_kernels import KVLayout

from jaxinfer.errors import ParameterError
from jaxinfer.models.declared import read_declared
from jaxinfer.models.loaded import plan_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.rules import ARRAYS, AXES, ShardingRules
from jaxinfer.parallel.topology import Topology
from tests.models.goldens import FAMILIES, GOLDENS


def test_an_axis_over_several_mesh_axes():
    mesh = jax.sharding.AbstractMesh((1, 1, 2, 4), AXES)
    rules = ShardingRules(expert=("expert", "tensor"), expert_mlp=())
    found = rules.sharding(mesh, ("layers", "expert", "expert_mlp", "embed"), (3, 16, 64, 32))
    assert found.spec == PartitionSpec(None, ("expert", "tensor"), None, None)
    assert found.shard_shape((3, 16, 64, 32)) == (3, 2, 64, 32)
    with pytest.raises(ParameterError, match="mesh: expert, 12, cannot be split over expert=2, tensor=4"):
        rules.sharding(mesh, ("expert", "embed"), (12, 32))


def test_two_axes_of_an_array_share_no_mesh_axis():
    with pytest.raises(ParameterError, match="kv_heads and embed are axes of one array"):
        ShardingRules(embed=("tensor",))
    assert ShardingRules(embed=("data",), head_dim=("expert",)).embed == ("data",)
    mesh = jax.sharding.AbstractMesh((1, 1, 1, 2), AXES)
    with pytest.raises(ParameterError, match=r"vocab and mlp are axes of one array \(vocab, None, mlp\); one of them"):
        ShardingRules().sharding(mesh, ("vocab", None, "mlp"), (4, 4, 4))


def test_the_arrays_of_models_are_known():
    """Those of every family, in both layouts of layers, and of KV blocks."""
    found = {layout.axes for layout in KVLayout}
    for family in FAMILIES:
        config = read_declared(GOLDENS / family).config
        for layout in ("unrolled", "stacked"):
            plan = plan_model(config, np.dtype("float32"), layout)
            found |= {leaf.axes for one in (*plan.weights, *plan.head) for leaf in one.leaves("bytes")}
    logical = {tuple(axis for axis in axes if axis is not None) for axes in found}
    assert [axes for axes in logical if not any(set(axes) <= set(array) for array in ARRAYS)] == []
    assert {axis for axes in logical for axis in axes} == {field.name for field in fields(ShardingRules)}


def test_meshes_of_other_devices_are_refused():
    with pytest.raises(
        ParameterError, match=r"mesh: tensor=4096 needs 4096 devices; JAX has \d+ of cpu here, and makes"
    ):
        make_mesh(MeshConfig({"tensor": 4096}))
    with pytest.raises(ParameterError, match=r"mesh: is made for v6e:1x1; this machine has cpu \(cpu\)"):
        make_mesh(MeshConfig(topology=Topology.parse("v6e:1x1")))
    assert make_mesh(MeshConfig(topology=Topology.parse("cpu:1"))).shape == dict.fromkeys(AXES, 1)


@pytest.mark.parametrize(
    ("topology", "platform", "kind"),
    [
        ("v5e:2x2", "tpu", "TPU v5 lite"),
        ("v6e:2x2", "tpu", "TPU v6 lite"),
        ("v7x:2x2x1", "tpu", "TPU7x"),
        ("h200:1x1x8", "gpu", "NVIDIA H200"),
        ("h200:1x1x8", "cuda", "NVIDIA H200 NVL"),
    ],
)
def test_too_few_devices_of_the_right_kind(topology: str, platform: str, kind: str):
    placed = Topology.parse(topology)
    config, device = MeshConfig({"tensor": placed.devices}, topology=placed), SimpleNamespace(platform=platform)
    device.device_kind = kind
    with pytest.raises(ParameterError) as error:
        make_mesh(config, [device] * 3)
    assert str(error.value).endswith(f"needs {placed.devices} devices; JAX has 3 of {platform} here")
    device.device_kind = "another"
    with pytest.raises(ParameterError, match=f"is made for {topology}; this machine has another"):
        make_mesh(config, [device] * placed.devices)
