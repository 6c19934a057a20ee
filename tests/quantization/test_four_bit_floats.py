"""Checkpoints in MXFP4 and NVFP4: the weights that are loaded are the values that were written."""

import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxinfer.checkpoint.model_files import read_model_files
from jaxinfer.errors import ModelError
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import load_model
from tests.models.goldens import GOLDENS
from tests.quantization.checkpoints import (
    LLAMA,
    MOE,
    WEIGHTS,
    Checkpoint,
    Writer,
    assert_same_values,
    loaded,
    made,
    values_of,
)
from tests.quantization.forms import MODELOPT, MXFP4, config_of_groups, weights
from tests.quantization.writers import e2m1, fp8

NVFP4 = weights(4, "tensor_group", type="float", group_size=16)
CASES: dict[str, tuple[dict[str, Any], Writer]] = {
    "nvfp4": (config_of_groups("nvfp4-pack-quantized", NVFP4), partial(e2m1.nvfp4, compressed=True)),
    "mxfp4": (
        config_of_groups("mxfp4-pack-quantized", weights(4, "group", type="float", group_size=32)),
        e2m1.mxfp4,
    ),
    "modelopt": (MODELOPT, partial(e2m1.nvfp4, compressed=False)),
    "modelopt-fp8": ({**MODELOPT, "quant_algo": "FP8"}, fp8.by_matrix),
}


def test_a_file_of_its_own_for_what_modelopt_says(tmp_path: Path) -> None:
    checkpoint = made(LLAMA, *CASES["modelopt"])
    del checkpoint.config["quantization_config"]
    folder, plain = checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p")
    said = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": ["lm_head"]}
    content = {"producer": {"name": "modelopt", "version": "0.31.0"}, "quantization": said}
    (folder / "hf_quant_config.json").write_text(json.dumps(content))
    model = load_model(folder, read_model_files(folder).config, dtype=jnp.float32)
    found, wanted = values_of(model), values_of(loaded(plain))
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def gpt_oss() -> Checkpoint:
    """The golden model with experts of 64 channels, in MXFP4."""
    folder, rng = GOLDENS / "gpt_oss", np.random.default_rng(0)
    config = {**json.loads((folder / "config.json").read_text()), "intermediate_size": 64}
    plain = dict(load_file(folder / WEIGHTS))
    tensors = {name: tensor for name, tensor in plain.items() if ".experts." not in name}
    for layer in range(2):
        experts = f"model.layers.{layer}.mlp.experts."
        for kind, shape in (("gate_up_proj", (4, 128, 32)), ("down_proj", (4, 32, 64))):
            written, values = e2m1.gpt_oss(rng, f"{experts}{kind}", shape)
            bias = {f"{experts}{kind}_bias": rng.standard_normal(shape[:2]).astype("f4")}
            tensors |= written | bias
            plain |= {f"{experts}{kind}": np.ascontiguousarray(values.transpose(0, 2, 1))} | bias
    return Checkpoint({**config, "quantization_config": dict(MXFP4)}, tensors, plain)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("config", [LLAMA, MOE], ids=["dense", "experts"])
def test_values_are_those_that_were_written(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    checkpoint = made(config, *CASES[name], left=("lm_head", "gate"))
    assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"))


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_heads(tmp_path: Path, kv_heads: int, head_dim: int, name: str) -> None:
    heads = {"num_attention_heads": 8, "num_key_value_heads": kv_heads, "head_dim": head_dim, "num_hidden_layers": 1}
    checkpoint = made({**LLAMA, **heads}, *CASES[name])
    assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"))


def test_gpt_oss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Gate and up in turns; experts' values are read, and a warning says what that takes."""
    checkpoint = gpt_oss()
    folder, plain = checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p")
    with caplog.at_level(logging.WARNING):
        assert_same_values(folder, plain)
    [warning] = [record.getMessage() for record in caplog.records]
    count = 2 * 4 * (128 * 32 + 32 * 64)
    assert f"MXFP4 take {4 * count:,} bytes in float32 instead of {count * 17 // 32:,}" in warning


def test_only_experts_are_in_mxfp4_where_the_file_lists_no_others(tmp_path: Path) -> None:
    checkpoint = gpt_oss()
    del checkpoint.config["quantization_config"]["modules_to_not_convert"]
    assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"))


def test_a_checkpoint_whose_codes_the_device_has_warns_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quantization, writer = CASES["modelopt-fp8"]
    checkpoint = made(MOE, {**quantization, "ignore": ["lm_head"]}, writer)
    with caplog.at_level(logging.WARNING):
        loaded(checkpoint.write(tmp_path))
    assert not caplog.records


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({**MODELOPT, "quant_algo": "W4A8_AWQ"}, "quant_algo 'W4A8_AWQ' is not supported; FP8 and NVFP4 are"),
        ({**MODELOPT, "group_size": 32}, "group_size 32 is not supported; only 16 is"),
        ({**MODELOPT, "surprise": 1}, "surprise is unknown"),
        ({**MXFP4, "surprise": 1}, "surprise is unknown"),
        (config_of_groups("nvfp4-pack-quantized", {**NVFP4, "strategy": "group"}), "strategy group is not supported"),
        (config_of_groups("nvfp4-pack-quantized", {**NVFP4, "group_size": 32}), "group_size 32 is not supported"),
    ],
)
def test_refused(quantization: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_config({**LLAMA, "quantization_config": quantization})


DOWN = "model.layers.0.mlp.down_proj."


@pytest.mark.parametrize(
    ("name", "tensor", "change", "message"),
    [
        ("nvfp4", "weight_packed", lambda x: x[:, 1:], r"weight_packed has shape \[256, 191\]"),
        ("nvfp4", "weight_packed", lambda x: x.view(np.int8), "weight_packed is I8; U8 can be read"),
        ("nvfp4", "weight_global_scale", lambda x: x * 0, "weight_global_scale is 0, and scales are divided by it"),
        ("nvfp4", "weight_global_scale", None, "weight_global_scale is missing"),
        ("modelopt", "weight_scale_2", lambda x: x * np.nan, "weight_scale_2 has a scale that is not a finite number"),
        ("mxfp4", "weight_scale", lambda x: x * 0 + 255, "weight_scale has a scale that is not a finite number"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, tensor: str, change: Any, message: str) -> None:
    checkpoint = made(LLAMA, *CASES[name])
    if change is None:
        del checkpoint.tensors[DOWN + tensor]
    else:
        checkpoint.tensors[DOWN + tensor] = np.asarray(change(checkpoint.tensors[DOWN + tensor]))
    with pytest.raises(ModelError, match=message):
        loaded(checkpoint.write(tmp_path))
