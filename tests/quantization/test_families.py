"""Checkpoints in fp8 of families whose tensors have other names and other places: small models of each, quantised."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxinfer.errors import ModelError
from tests.models.goldens import GOLDENS
from tests.quantization.checkpoints import WEIGHTS, Checkpoint, assert_same_values, config_of
from tests.quantization.forms import BLOCKS
from tests.quantization.writers import fp8

FAMILIES = (
    *("cohere", "deepseek_moe", "gemma3", "gemma3_vision", "glm", "glm4_moe", "granite_moe", "internlm2", "llava"),
    *("minimax_m2", "mixtral", "phi3", "qwen2_moe", "qwen3", "stablelm", "starcoder2"),
)
"""With heads whose channels are sorted, fused tensors, towers before the text part, experts and shared ones."""
PLAIN = (
    "gate",
    "router",
    "shared_expert_gate",
    "layer",
    "lm_head",
    "vision_tower",
    "multi_modal_projector",
    "q_norm",
    "k_norm",
)
"""Words in the names of modules that are left as they are."""


def quantised(family: str) -> Checkpoint:
    rng, folder = np.random.default_rng(0), GOLDENS / family
    tensors: dict[str, np.ndarray] = {}
    plain: dict[str, np.ndarray] = {}
    for name, tensor in load_file(folder / WEIGHTS).items():
        module, words = name.removesuffix(".weight"), name.split(".")
        if tensor.ndim != 2 or "layers" not in words or not name.endswith(".weight") or set(words) & set(PLAIN):
            tensors[name] = plain[name] = tensor
        else:
            written, plain[name] = fp8.by_blocks(rng, module, *tensor.shape, block=(12, 16))
            tensors |= written
    config = json.loads((folder / "config.json").read_text())
    quantization = {**BLOCKS, "weight_block_size": [12, 16], "modules_to_not_convert": list(PLAIN)}
    return Checkpoint({**config, "quantization_config": quantization}, tensors, plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_those_that_were_written(tmp_path: Path, family: str) -> None:
    checkpoint = quantised(family)
    assert len(checkpoint.tensors) > len(checkpoint.plain) + 4
    assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"))


@pytest.mark.parametrize("root", ["language_model.model.", "model.language_model.", "model."])
def test_lists_may_name_modules_of_a_text_part_otherwise(tmp_path: Path, root: str) -> None:
    checkpoint = quantised("llava")
    config = checkpoint.config["quantization_config"]
    config["modules_to_not_convert"].append(f"{root}layers.1.self_attn")
    config = config_of(checkpoint.write(tmp_path))
    assert config.layers[0].schemes.qkv is not None
    assert config.layers[1].schemes.qkv is None


def test_a_setting_of_the_text_part_is_read(tmp_path: Path) -> None:
    checkpoint = quantised("llava")
    checkpoint.config["text_config"]["quantization_config"] = checkpoint.config.pop("quantization_config")
    assert config_of(checkpoint.write(tmp_path)).layers[0].schemes.qkv is not None
    checkpoint.config["text_config"]["compression_config"] = {"quant_method": "compressed-tensors"}
    with pytest.raises(ModelError, match="text_config: compression_config is there beside quantization_config"):
        config_of(checkpoint.write(tmp_path))
