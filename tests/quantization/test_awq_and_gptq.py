"""Checkpoints of AutoAWQ, AutoGPTQ and GPTQModel: the weights that are loaded are those that were written."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.errors import ModelError
from jaxinfer.model_config.model_files import read_model_files
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.declared import fitting
from jaxinfer.quantization.scheme import Scheme
from tests.quantization.checkpoints import LLAMA, MOE, Writer, assert_same_values, config_of, loaded, made
from tests.quantization.forms import AWQ, GPTQ
from tests.quantization.writers import awq
from tests.quantization.writers.gptq import gptq

Case = tuple[dict[str, Any], Writer, Scheme | None]
CASES: dict[str, Case] = {
    "awq": ({**AWQ, "group_size": 32}, awq.gemm, Scheme("int4", 32, zeros=True)),
    "awq-rows": ({**AWQ, "group_size": -1}, partial(awq.gemm, group=None), Scheme("int4", zeros=True)),
    "gptq": ({**GPTQ, "group_size": 32}, gptq, Scheme("int4", 32)),
    "gptq-rows": ({**GPTQ, "group_size": -1, "desc_act": True}, partial(gptq, group=None), Scheme("int4")),
    "gptq-zeros": (
        {**GPTQ, "group_size": 32, "sym": False},
        partial(gptq, symmetric=False),
        Scheme("int4", 32, zeros=True),
    ),
    "gptq-v2": (
        {**GPTQ, "group_size": 32, "sym": False, "checkpoint_format": "gptq_v2"},
        partial(gptq, symmetric=False, version=2),
        Scheme("int4", 32, zeros=True),
    ),
    "gptq-8": ({**GPTQ, "bits": 8, "group_size": 32}, partial(gptq, bits=8), Scheme("int8", 32)),
    "gptq-8-zeros": (
        {**GPTQ, "bits": 8, "group_size": 64, "sym": False},
        partial(gptq, bits=8, group=64, symmetric=False),
        Scheme("int8", 64, zeros=True),
    ),
    "gptq-order": (
        {**GPTQ, "group_size": 32, "desc_act": True},
        partial(gptq, order="inputs"),
        Scheme("int4", 32, ordered=True),
    ),
    "gptq-8-order-zeros": (
        {**GPTQ, "bits": 8, "group_size": 32, "desc_act": True, "sym": False},
        partial(gptq, bits=8, order="inputs", symmetric=False),
        Scheme("int8", 32, zeros=True, ordered=True),
    ),
    "gptq-bias": ({**GPTQ, "group_size": 32}, partial(gptq, bias=True), Scheme("int4", 32)),
}


def same(tmp_path: Path, config: dict[str, Any], quantization: dict[str, Any], writer: Writer):
    checkpoint = made(config, quantization, writer, left=("lm_head", "gate"))
    return assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"))


@pytest.mark.few(9)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("config", [LLAMA, MOE], ids=["dense", "experts"])
def test_values_are_those_that_were_written(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    quantization, writer, scheme = CASES[name]
    schemes = same(tmp_path, config, quantization, writer).config.layers[1].schemes
    assert {schemes.qkv, schemes.down or schemes.experts_down} == {scheme}


@pytest.mark.parametrize("name", ["awq", "gptq-zeros"])
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_heads(tmp_path: Path, kv_heads: int, head_dim: int, name: str) -> None:
    heads = {"num_attention_heads": 8, "num_key_value_heads": kv_heads, "head_dim": head_dim, "num_hidden_layers": 1}
    same(tmp_path, {**LLAMA, **heads}, *CASES[name][:2])


@pytest.mark.parametrize("name", ["awq", "gptq-zeros"])
@pytest.mark.parametrize("size", [11008, 14336])
def test_large_mlps(tmp_path: Path, size: int, name: str) -> None:
    config = {**LLAMA, "intermediate_size": size, "hidden_size": 64, "num_hidden_layers": 1}
    same(tmp_path, config, *CASES[name][:2])


@pytest.mark.parametrize("name", ["awq", "gptq-zeros"])
def test_a_last_group_that_is_shorter(tmp_path: Path, name: str) -> None:
    """Groups of 96 of 256 columns."""
    quantization, _, scheme = CASES[name]
    writer: Writer = partial(awq.gemm, group=96) if name == "awq" else partial(gptq, group=96, symmetric=False)
    model = same(tmp_path, LLAMA, {**quantization, "group_size": 96}, writer)
    assert model.config.layers[0].schemes.qkv == scheme


def test_a_quantised_head(tmp_path: Path) -> None:
    checkpoint = made(LLAMA, {**GPTQ, "group_size": 32, "lm_head": True}, gptq, left=())
    model = assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"))
    assert model.config.tables.table == Scheme("int4", 32)


@pytest.mark.parametrize("order", [False, True])
def test_a_quantised_head_that_the_file_ties_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, order: bool
) -> None:
    quantization = {**GPTQ, "group_size": 32, "lm_head": True, "desc_act": order}
    checkpoint = made(LLAMA, quantization, partial(gptq, order="inputs" if order else "columns"), left=())
    plain = checkpoint.write_plain(tmp_path / "p")
    checkpoint.config["tie_word_embeddings"] = True
    model = assert_same_values(checkpoint.write(tmp_path / "q"), plain)
    assert model.config.tables.table == Scheme("int4", 32, ordered=order)
    assert "model.embed_tokens.weight and lm_head.qweight differ: both are used" in caplog.text


def test_a_quantised_head_that_nothing_declares_is_refused(tmp_path: Path) -> None:
    checkpoint = made(LLAMA, {**GPTQ, "group_size": 32}, gptq, left=())
    checkpoint.config["tie_word_embeddings"] = True
    with pytest.raises(ModelError, match=r"model\.safetensors: tensor lm_head\.qweight is of a quantised head, which"):
        loaded(checkpoint.write(tmp_path))


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        ("gptq", "quantize_config.json", {**GPTQ, "group_size": 32, "model_file_base_name": "model"}),
        ("awq", "quant_config.json", {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}),
    ],
)
def test_what_tools_once_wrote_into_a_file_of_its_own(
    tmp_path: Path, name: str, file: str, said: dict[str, Any]
) -> None:
    quantization, writer, scheme = CASES[name]
    folder = made(LLAMA, quantization, writer).write(tmp_path)
    declared = config_of(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / file).write_text(json.dumps({key: value for key, value in said.items() if key != "quant_method"}))
    assert read_model_files(folder).config == declared
    assert declared.layers[0].schemes.qkv == scheme
    assert "LlamaForCausalLM" in fitting(folder)


def test_a_plain_head_that_is_the_embedding_stays_tied_though_the_file_calls_it_quantised(tmp_path: Path) -> None:
    config = {**LLAMA, "tie_word_embeddings": True}
    checkpoint = made(config, {**GPTQ, "group_size": 32, "lm_head": True}, gptq)
    checkpoint.tensors["lm_head.weight"] = checkpoint.tensors["model.embed_tokens.weight"].copy()
    assert loaded(checkpoint.write(tmp_path)).config.tie_word_embeddings


def test_modules_of_other_bits_and_modules_that_are_left_out(tmp_path: Path) -> None:
    rules = {"+:.*self_attn.*": {"bits": 8, "group_size": 64}, r"-:model\.layers\.0\.mlp\.": {}}

    def writer(rng: np.random.Generator, module: str, rows: int, depth: int):
        bits, group = (8, 64) if "self_attn" in module else (4, 32)
        return gptq(rng, module, rows, depth, bits=bits, group=group)

    checkpoint = made(LLAMA, {**GPTQ, "group_size": 32, "dynamic": rules}, writer, left=("lm_head", "0"))
    config = parse_config(checkpoint.config)
    assert config.layers[0].schemes.qkv == config.layers[1].schemes.qkv == Scheme("int8", 64)
    assert config.layers[0].schemes.down is None
    assert config.layers[1].schemes.down == Scheme("int4", 32)
    rules = {r"-:model\.layers\.0\.": {}, "+:.*self_attn.*": {"bits": 8, "group_size": 64}}  # the first decides
    checkpoint.config["quantization_config"]["dynamic"] = rules
    assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"))


def test_listed_modules(tmp_path: Path) -> None:
    listed = [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["self_attn.o_proj"]]
    quantization = {**GPTQ, "group_size": 32, "modules_in_block_to_quantize": listed}
    checkpoint = made(LLAMA, quantization, gptq, left=("lm_head", "mlp"))
    model = assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"))
    assert model.config.layers[0].schemes.down is None


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({**AWQ, "version": "gemv"}, "version 'gemv' is not supported; gemm is"),
        ({**AWQ, "bits": 8}, "bits 8 is not supported"),
        ({**AWQ, "zero_point": False}, "zero_point False is not supported"),
        ({**AWQ, "group_size": 0}, "group_size must be of 1 to 4194304, not 0"),
        ({**AWQ, "group_size": 10**9}, "group_size must be of 1 to"),
        ({**AWQ, "surprising_scale": 2}, "surprising_scale is unknown"),
        ({**GPTQ, "bits": 3}, "bits 3 is not supported; 4 and 8 are"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not supported"),
        ({**GPTQ, "is_marlin_format": True}, "is_marlin_format True is not supported"),
        ({**GPTQ, "dynamic": {"-:(a+)+$": {}}}, "might take long"),
        ({**GPTQ, "dynamic": {"a": {"bits": 2}}}, "bits 2 is not supported"),
        ({**GPTQ, "dynamic": {"a": {"surprising_scale": 2}}}, "surprising_scale is unknown"),
        ({**GPTQ, "modules_in_block_to_quantize": "a"}, "must be a list"),
        ({**GPTQ, "surprising_scale": 2}, "surprising_scale is unknown"),
    ],
)
def test_refused(quantization: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_config({**LLAMA, "quantization_config": quantization})


DOWN = "model.layers.0.mlp.down_proj."


@pytest.mark.parametrize(
    ("name", "tensor", "change", "message"),
    [
        ("awq", "qweight", lambda x: x.T, r"qweight has shape \[32, 384\]; config.json asks for \[384, 32\]"),
        ("awq", "qzeros", None, "qzeros is missing"),
        ("awq", "scales", lambda x: x * np.nan, "model.safetensors: tensor .*scales has a scale that is not"),
        ("awq", "scales", np.zeros_like, "model.safetensors: tensor .*scales has no scale but 0"),
        ("gptq", "scales", np.zeros_like, "tensor .*scales has no scale but 0"),
        ("awq", "scales", lambda x: x.astype(np.int32), "scales is I32; F32, F16 and BF16 can be read"),
        ("gptq", "qweight", lambda x: x.astype(np.int64), "qweight is I64; I32 can be read"),
        ("gptq", "qzeros", lambda x: x + 1, "qzeros has a zero off the middle, though .*sym is true"),
        ("gptq", "g_idx", lambda x: x[::-1], "g_idx has columns in another order, though .*desc_act is false"),
        ("gptq", "g_idx", lambda x: x * 0 - 1, "g_idx has columns in another order"),
        ("gptq-order", "g_idx", lambda x: x + 1, "g_idx has a group that is not among the 12 that have scales"),
        ("gptq-order", "g_idx", lambda x: x * -1, "g_idx has a group"),
        ("gptq-bias", "bias", lambda x: x + 1, "down_proj.bias has no place in the model"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, tensor: str, change: Any, message: str) -> None:
    quantization, writer, _ = CASES[name]
    checkpoint = made(LLAMA, quantization, writer)
    if change is None:
        del checkpoint.tensors[DOWN + tensor]
    else:
        checkpoint.tensors[DOWN + tensor] = change(checkpoint.tensors[DOWN + tensor])
    with pytest.raises(ModelError, match=message):
        loaded(checkpoint.write(tmp_path))
