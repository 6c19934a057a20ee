"""Checkpoints in MXFP4 and NVFP4: the weights that are loaded are the values that were written."""

import json
import logging
import math
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxinfer.checkpoint.formats.nvfp4 import Nvfp4
from jaxinfer.checkpoint.safetensors import Checkpoint as Files
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.errors import ModelError
from jaxinfer.model_config.model_files import read_model_files
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import LoadedModel, load_model, plan_model
from jaxinfer.quantization.array import part_form, quantise
from jaxinfer.quantization.scheme import Scheme
from jaxinfer.runner.jax_runner import JaxRunner
from tests.models.goldens import GOLDENS
from tests.models.paged import ODD_CHUNKS, PagedModel, run_paged
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
from tests.quantization.forms import FORMS, MODELOPT, MXFP4, config_of_groups, weights
from tests.quantization.writers import e2m1, fp8
from tests.runner.tiny import drive, greedy, make_core, tiny_shapes

NVFP4 = weights(4, "tensor_group", type="float", group_size=16)
CASES: dict[str, tuple[dict[str, Any], Writer]] = {
    "nvfp4": (config_of_groups("nvfp4-pack-quantized", NVFP4), partial(e2m1.nvfp4, compressed=True)),
    "mxfp4": FORMS["mxfp4"],
    "modelopt": (MODELOPT, partial(e2m1.nvfp4, compressed=False)),
    "modelopt-fp8": ({**MODELOPT, "quant_algo": "FP8"}, fp8.by_matrix),
}

ROUNDED = {"nvfp4": 2.0**-22}
"""How far values may be off whose factor is one over the number that scales are divided by: by two roundings more."""


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
    """Bit for bit where scales are multiplied by that of the matrix."""
    checkpoint = made(config, *CASES[name], left=("lm_head", "gate"))
    assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"), ROUNDED.get(name, 0))


@pytest.mark.parametrize("compressed", [True, False])
def test_values_that_are_read_as_such_are_exact(tmp_path: Path, compressed: bool) -> None:
    checkpoint, module = made(LLAMA, *CASES["nvfp4" if compressed else "modelopt"]), "model.layers.0.mlp.up_proj"
    values = Nvfp4(compressed).parts(module, (384, 256)).source("weight")
    with Files(checkpoint.write(tmp_path)) as files:
        found = files.read_source(values, (slice(None), slice(None)))
    np.testing.assert_array_equal(found, checkpoint.plain[f"{module}.weight"])


@pytest.mark.few(17)
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_heads(tmp_path: Path, kv_heads: int, head_dim: int, name: str) -> None:
    heads = {"num_attention_heads": 8, "num_key_value_heads": kv_heads, "head_dim": head_dim, "num_hidden_layers": 1}
    checkpoint = made({**LLAMA, **heads}, *CASES[name])
    assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"), ROUNDED.get(name, 0))


def test_gpt_oss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Gate and up in turns; experts are held as they lie in the checkpoint, in four bits and a quarter a value."""
    checkpoint = gpt_oss()
    folder, plain = checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p")
    with caplog.at_level(logging.WARNING):
        model = assert_same_values(folder, plain)
    assert not caplog.records
    held = [one for one in plan_model(model.config, model.dtype).weights if one.scheme is not None]
    assert {one.scheme for one in held} == {Scheme("e2m1", group, scales="e8m0") for group in (32, None)}
    count = 2 * 4 * (128 * 32 + 32 * 64)
    assert sum(one.bytes("types") for one in held) == count * 17 // 32


@pytest.mark.long
def test_an_engine_over_gpt_oss(tmp_path: Path) -> None:
    """Logits and tokens are those of the values; prompts in chunks, beside another, and found in the cache."""
    checkpoint = gpt_oss()
    prompt = np.load(GOLDENS / "gpt_oss" / "golden.npz")["prompt"]
    models = loaded(checkpoint.write(tmp_path / "q")), loaded(checkpoint.write_plain(tmp_path / "p"))
    token_ids = np.random.default_rng(1).integers(0, models[0].config.vocab_size, 40)
    found, wanted = (run_paged(PagedModel(model), token_ids, ODD_CHUNKS)[0] for model in models)
    assert wanted.std() > 0.1
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert generated(models[0], prompt.tolist()) == generated(models[1], prompt.tolist())


def generated(model: LoadedModel, prompt: list[int]) -> list[list[int]]:
    runner = JaxRunner(model, tiny_shapes(model, max_num_seqs=3, max_num_batched_tokens=8, blocks=60))
    runner.warm_up(when="lazy")
    core = make_core(runner)
    first = drive(core, [GenerateRequest("first", prompt, greedy(20))])["first", 0]
    longer = GenerateRequest("second", [*prompt, *first.tokens[:10]], greedy(10))
    others = drive(core, [longer, GenerateRequest("third", prompt[::-1], greedy(10))])
    assert others["second", 0].cached > 0
    return [first.tokens, others["second", 0].tokens, others["third", 0].tokens]


@pytest.mark.parametrize(("name", "bits"), [("mxfp4", 4.25), ("modelopt", 4.5), ("nvfp4", 4.5)])
def test_matrices_are_held_as_codes(tmp_path: Path, name: str, bits: float) -> None:
    model = loaded(made(LLAMA, *CASES[name]).write(tmp_path))
    held = [one for one in plan_model(model.config, model.dtype).weights if one.scheme is not None]
    assert {one.path[-1] for one in held} == {"qkv", "out", "gate_up", "down"}
    for one in held:
        assert one.scheme is not None
        factors = 0 if name == "mxfp4" else 32 * math.prod(one.shape[:-1])
        assert one.bytes("types") * 8 == one.scheme.bits(one.shape) == bits * math.prod(one.shape) + factors


@pytest.mark.parametrize("scheme", [Scheme("e2m1", 32, scales="e8m0"), Scheme("e2m1", 16)], ids=str)
def test_values_are_rounded_to_near_codes(scheme: Scheme) -> None:
    """For random weights. The largest of a group is 6 at most, and two codes are 2 apart at most."""
    values = np.random.default_rng(0).standard_normal((5, 64)).astype("f4")
    codes, scales = (np.asarray(part) for part in quantise(jnp.asarray(values), scheme))
    assert (codes.dtype, scales.dtype) == tuple(
        part_form(scheme, part, values.shape, "types").dtype for part in scheme.parts
    )
    each = np.repeat(scales.astype("f4"), scheme.group or 64, axis=1)
    assert (np.abs(codes.astype("f4") * each - values) <= 1.001 * each).all()
    assert (np.abs(values) <= 6.001 * each).all()


def test_a_scale_of_a_whole_matrix_stays_that_of_its_rows(tmp_path: Path) -> None:
    """Those of q, k and v, and of gate and up, differ, and become scales of rows of one weight."""
    checkpoint = made(LLAMA, *CASES["modelopt"])
    module = "model.layers.0.self_attn."
    whole = [checkpoint.tensors[f"{module}{kind}_proj.weight_scale_2"] for kind in "qkv"]
    assert len({float(scale) for scale in whole}) == 3
    assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"))


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
        ({**MODELOPT, "surprising_scale": 2}, "surprising_scale is unknown"),
        ({**MXFP4, "surprising_scale": 2}, "surprising_scale is unknown"),
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
        ("nvfp4", "weight_global_scale", lambda x: x * 0, "weight_global_scale is a scale of 0; it must be above 0"),
        ("nvfp4", "weight_global_scale", lambda x: -x, "weight_global_scale is a scale of -.*; it must be above 0"),
        ("nvfp4", "weight_scale", np.zeros_like, "model.safetensors: tensor .*weight_scale has no scale but 0"),
        ("nvfp4", "weight_global_scale", lambda x: x * 0 + 1e-45, "has a scale that is not a finite number"),
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
