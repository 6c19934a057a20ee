"""Engines over devices that they make of the CPU, by a mesh's name, in processes whose JAX has none yet."""

from pathlib import Path

import pytest

from tests.material import material
from tests.models.goldens import GOLDENS
from tests.runner import cpu_meshes
from tests.runner.devices import run_without_devices


@pytest.mark.long
def test_a_mesh_by_its_name_gives_the_tokens_of_one_device():
    run_without_devices(cpu_meshes.compare_demo)


@pytest.mark.long
def test_all_devices_share_one_budget_of_kv_blocks(tmp_path: Path):
    """Blocks that are split, and those that lie on each device."""
    file = tmp_path / "own.yaml"
    file.write_text("axes: {tensor: 2}\nrules: {kv_heads: null}\n")
    run_without_devices(cpu_meshes.check_budget, str(file))


@pytest.mark.long
@pytest.mark.parametrize("family", ["gpt_oss", "mixtral"])
def test_experts_by_channels_and_whole_give_the_tokens_of_one_device(family: str, tmp_path: Path):
    file = tmp_path / "own.yaml"
    file.write_text("axes: {expert: 2, tensor: 2}\nrules: {expert: [expert, tensor], expert_mlp: null}\n")
    run_without_devices(cpu_meshes.compare_experts, str(GOLDENS / family), str(file), family == "gpt_oss")


@pytest.mark.long
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_other_rules_give_the_tokens_of_one_device(quantization: str, tmp_path: Path):
    """Every matrix split along its inputs, or along query heads; attention whole on each device."""
    rules = "rules: {embed: tensor, kv_heads: null, mlp: null, vocab: null, expert_mlp: null}"
    files = tmp_path / "embed.yaml", tmp_path / "q_per_kv.yaml"
    for file, text in zip(files, (rules, "rules: {q_per_kv: tensor, kv_heads: null}"), strict=True):
        file.write_text(f"axes: {{tensor: 2}}\n{text}\n")
    run_without_devices(cpu_meshes.compare_rules, str(GOLDENS / "llama3"), quantization, *map(str, files))


@pytest.mark.long
def test_a_trained_model_over_four_devices_gives_the_reference_and_compiles_nothing_late():
    run_without_devices(cpu_meshes.compare_trained, str(material("models", "stories260K")))
