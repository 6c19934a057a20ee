"""The mesh that settings ask for, and what engines refuse by name."""

from pathlib import Path
from typing import Any

import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.llm import engine_config
from jaxinfer.parallel.asked_mesh import asked_mesh, served_mesh
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.mesh_file import read_mesh, shipped_meshes


def asked(**flags: Any) -> MeshConfig:
    return asked_mesh(engine_config(None, None, flags).parallel)


def test_flags_and_files_ask_for_the_same():
    assert asked() == MeshConfig()
    assert asked(mesh="tp4") == asked(tensor_parallel_size=4) == asked(mesh="tp4", tensor_parallel_size=4)
    assert asked(tensor_parallel_size=4, attention_data_parallel=2) == read_mesh("data2-tp4")
    assert asked(tensor_parallel_size=4, attention_data_parallel=2).shape == (2, 1, 1, 4)


def test_expert_parallelism_gives_whole_experts_to_the_devices_of_tensor_parallelism():
    found = asked(tensor_parallel_size=4, enable_expert_parallel=True)
    assert (found.rules.expert, found.rules.expert_mlp, found.rules.mlp) == (("expert", "tensor"), (), ("tensor",))
    assert asked(mesh="tp4", enable_expert_parallel=True) == found
    assert asked(mesh="ep8", enable_expert_parallel=True) == read_mesh("ep8")
    assert asked(mesh="ep8", redundant_experts=8).parts == (8, 8, 8, 8)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"mesh": "tp4", "tensor_parallel_size": 2}, "tensor_parallel_size: 2 contradicts mesh tp4, .* tensor=4"),
        ({"mesh": "single", "tensor_parallel_size": 2}, "tensor_parallel_size: 2 contradicts mesh single"),
        ({"mesh": "pp2", "attention_data_parallel": 2}, "attention_data_parallel: 2 contradicts mesh pp2, .* data=1"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size: 0 must be at least 1"),
        ({"attention_data_parallel": -1}, "attention_data_parallel: -1 must be at least 1"),
        ({"tensor_parallel_size": "two"}, "tensor_parallel_size: .*int"),
        ({"redundant_experts": 4}, "redundant_experts: 4: no axis of the mesh .one device. splits experts"),
        ({"redundant_experts": 4, "tensor_parallel_size": 2}, "redundant_experts: .*enable_expert_parallel"),
        ({"redundant_experts": -1}, "redundant_experts: -1 must be at least 0"),
        ({"mesh": 4}, "mesh: "),
        ({"mesh": ""}, "mesh: '' is no mesh"),
    ],
)
def test_what_contradicts_is_refused(flags: dict[str, Any], told: str):
    with pytest.raises(ParameterError, match=told):
        asked(**flags)


def test_a_rule_of_a_file_that_contradicts_expert_parallelism(tmp_path: Path):
    file = tmp_path / "my.yaml"
    file.write_text("axes: {tensor: 2, data: 1}\nrules: {expert: data}\n")
    with pytest.raises(ParameterError, match=r"enable_expert_parallel: contradicts the rules of mesh .*my\.yaml"):
        asked(mesh=str(file), enable_expert_parallel=True)


REFUSED = {
    "v6e-16": "mesh: v6e:4x4 is 4 hosts, and this engine has 1",
    "v6e-16-pp2": "mesh: v6e:4x4 is 4 hosts, and this engine has 1",
    "v7x-16-pp2": "mesh: v7x:2x2x2 is 2 hosts, and this engine has 1",
    "h200-16": "mesh: h200:2x1x8 is 2 hosts, and this engine has 1",
}


@pytest.mark.parametrize("name", shipped_meshes())
def test_what_engines_run_on(name: str):
    parallel = engine_config(None, None, {"mesh": name}).parallel
    if name not in REFUSED:
        assert served_mesh(parallel) == read_mesh(name)
        return
    with pytest.raises(ParameterError) as error:
        served_mesh(parallel)
    assert str(error.value).startswith(REFUSED[name])


@pytest.mark.parametrize("axis", ["layers", "head_dim"])
def test_rules_that_would_split_kv_blocks_otherwise_than_by_heads(axis: str, tmp_path: Path):
    file = tmp_path / "my.yaml"
    file.write_text(f"axes: {{expert: 2}}\nrules: {{expert: null, {axis}: expert}}\n")
    with pytest.raises(ParameterError, match=rf"mesh: rules.{axis}: expert would split KV blocks; null is allowed"):
        served_mesh(engine_config(None, None, {"mesh": str(file)}).parallel)


def test_weights_are_not_split_over_data(tmp_path: Path):
    file = tmp_path / "my.yaml"
    file.write_text("axes: {data: 2, tensor: 2}\nrules: {mlp: [data, tensor]}\n")
    with pytest.raises(ParameterError, match=r"mesh: rules\.mlp: data splits requests"):
        served_mesh(engine_config(None, None, {"mesh": str(file)}).parallel)


def test_stages_hold_whole_layers(tmp_path: Path):
    file = tmp_path / "my.yaml"
    file.write_text("axes: {stage: 2, tensor: 2}\nrules: {mlp: [stage, tensor]}\n")
    with pytest.raises(ParameterError, match=r"mesh: rules\.mlp: stage splits layers, whole ones"):
        served_mesh(engine_config(None, None, {"mesh": str(file)}).parallel)


def test_stages_are_asked_for_by_a_flag():
    parallel = engine_config(None, None, {"pipeline_parallel_size": 2, "tensor_parallel_size": 4}).parallel
    assert served_mesh(parallel) == MeshConfig({"stage": 2, "tensor": 4})
    parallel = engine_config(None, None, {"mesh": "pp2-tp4", "pipeline_layers": "0-3,4-9"}).parallel
    assert served_mesh(parallel) == read_mesh("pp2-tp4")
    with pytest.raises(ParameterError, match=r"pipeline_layers: 0-3,4-9: the mesh \(one device\) has no stages"):
        served_mesh(engine_config(None, None, {"pipeline_layers": "0-3,4-9"}).parallel)


def test_groups_that_attend_for_different_requests():
    parallel = engine_config(None, None, {"attention_data_parallel": 2}).parallel
    assert served_mesh(parallel) == MeshConfig({"data": 2})
