"""Checkpoints in fp8: the weights that are loaded are those that were written."""

from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxinfer.errors import ModelError, ParameterError
from jaxinfer.model_config.registry import parse_config
from jaxinfer.quantization.scheme import Scheme
from tests.quantization.checkpoints import LLAMA, MOE, assert_same_values, loaded, made
from tests.quantization.forms import BLOCKS, STATIC
from tests.quantization.writers import fp8

WRITERS = {
    "blocks": (BLOCKS, fp8.by_blocks),
    "blocks-bf16": (BLOCKS, partial(fp8.by_blocks, dtype=ml_dtypes.bfloat16)),
    "blocks-e8m0": ({**BLOCKS, "scale_fmt": "ue8m0"}, partial(fp8.by_blocks, dtype=ml_dtypes.float8_e8m0fnu)),
    "oblong": ({**BLOCKS, "weight_block_size": [64, 32]}, partial(fp8.by_blocks, block=(64, 32))),
    "matrix": (STATIC, fp8.by_matrix),
    "matrix-of-1": (STATIC, partial(fp8.by_matrix, shape=(1,))),
    "matrix-inv": (STATIC, partial(fp8.by_matrix, name="weight_scale_inv", static=False)),
    "rows": (STATIC, fp8.by_row),
    "rows-flat": (STATIC, partial(fp8.by_row, flat=True)),
}


def check(tmp_path: Path, config: dict[str, Any], name: str, **options: Any):
    quantization, writer = WRITERS[name]
    checkpoint = made(config, quantization, writer, left=("lm_head", "gate"))
    return assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"), **options)


@pytest.mark.few(11)
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("config", [LLAMA, MOE], ids=["dense", "experts"])
def test_values_are_those_that_were_written(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    model = check(tmp_path, config, name)
    group = {"blocks": 128, "oblong": 32}.get(name.partition("-")[0])
    assert model.config.layers[0].schemes.qkv == Scheme("e4m3", group)


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_heads(tmp_path: Path, kv_heads: int, head_dim: int) -> None:
    """Blocks do not end where heads do."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": kv_heads, "head_dim": head_dim, "num_hidden_layers": 1}
    check(tmp_path, {**LLAMA, **heads}, "blocks")


@pytest.mark.parametrize("size", [11008, 14336])
def test_large_mlps(tmp_path: Path, size: int) -> None:
    check(tmp_path, {**LLAMA, "intermediate_size": size, "hidden_size": 128, "num_hidden_layers": 1}, "blocks")


@pytest.mark.parametrize(("hidden", "group"), [(192, 64), (168, 8), (96, None)])
def test_a_last_block_that_is_shorter(tmp_path: Path, hidden: int, group: int | None) -> None:
    """Groups on the device are then a part of a block, of one length, and their scales are repeated."""
    config = {**LLAMA, "hidden_size": hidden, "intermediate_size": 200}
    model = check(tmp_path, config, "blocks")
    assert model.config.layers[0].schemes.qkv == Scheme("e4m3", group)


def test_a_tied_head(tmp_path: Path) -> None:
    check(tmp_path, {**LLAMA, "tie_word_embeddings": True}, "blocks")


def test_some_modules_are_left_out(tmp_path: Path) -> None:
    left = {**BLOCKS, "modules_to_not_convert": ["lm_head", "model.layers.0.mlp", "model.layers.*.self_attn", "gate"]}
    checkpoint = made(LLAMA, left, fp8.by_blocks, left=("lm_head", "self_attn"))
    folder, plain = checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p")
    with pytest.raises(ModelError, match=r"tensor model\.layers\.0\.mlp\.\w+\.weight is F8_E4M3; F32, F16 and BF16"):
        loaded(folder)
    left["modules_to_not_convert"].remove("model.layers.0.mlp")
    model = assert_same_values(checkpoint.write(folder), plain)
    assert model.config.layers[0].schemes.qkv is None
    assert model.config.layers[0].schemes.down == Scheme("e4m3", 128)


def test_a_block_far_larger_than_a_matrix(tmp_path: Path) -> None:
    writer = partial(fp8.by_blocks, block=(2**22, 2**22))
    checkpoint = made(LLAMA, {**BLOCKS, "weight_block_size": [2**22, 2**22]}, writer)
    assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"))


DOWN = "model.layers.0.mlp.down_proj."


def with_code(codes: np.ndarray, code: int) -> np.ndarray:
    changed = codes.copy()
    changed.view(np.uint8)[-1, -1] = code
    return changed


def test_some_scales_may_be_0(tmp_path: Path) -> None:
    """Those of blocks and rows of zeros."""
    for name, scale in (("blocks", "weight_scale_inv"), ("rows", "weight_scale")):
        quantization, writer = WRITERS[name]
        checkpoint = made(LLAMA, quantization, writer)
        checkpoint.tensors[DOWN + scale][0] = 0
        checkpoint.plain[f"{DOWN}weight"][: 128 if name == "blocks" else 1] = 0
        assert_same_values(checkpoint.write(tmp_path / name), checkpoint.write_plain(tmp_path / f"{name}-plain"))


@pytest.mark.parametrize(
    ("name", "tensor", "change", "message"),
    [
        ("blocks", "weight", lambda x: x.astype(np.float32), "down_proj.weight is F32; F8_E4M3 can be read"),
        ("blocks", "weight", lambda x: x[:, :-1], r"has shape \[256, 383\]; config.json asks for \[256, 384\]"),
        ("blocks", "weight_scale_inv", lambda x: x[:1], r"has shape \[1, 3\]; config.json asks for \[2, 3\]"),
        ("blocks", "weight_scale_inv", lambda x: x.astype(np.int32), "is I32; F32, F16, BF16 and F8_E8M0 can"),
        ("blocks", "weight_scale_inv", None, r"down_proj.weight_scale_inv is missing"),
        ("blocks", "weight_scale_inv", lambda x: x * np.nan, "weight_scale_inv has a scale that is not a finite"),
        ("rows", "weight_scale", lambda x: x * np.inf, "model.safetensors: tensor .* not a finite number"),
        (
            "blocks",
            "weight_scale_inv",
            np.zeros_like,
            "model.safetensors: tensor .*weight_scale_inv has no scale but 0",
        ),
        ("rows", "weight_scale", np.zeros_like, "tensor .*weight_scale has no scale but 0"),
        ("matrix", "weight_scale", lambda x: x * 0, "tensor .*weight_scale is a scale of 0; it must be above 0"),
        ("matrix", "weight_scale", lambda x: -x, "weight_scale is a scale of -.*; it must be above 0"),
        ("matrix", "weight_scale", lambda x: x * np.nan, "weight_scale has a scale that is not a finite number"),
        (
            "blocks",
            "weight",
            lambda x: with_code(x, 0x7F),
            "model.safetensors: tensor .*weight has a value that is not a",
        ),
        (
            "rows",
            "weight",
            lambda x: with_code(x, 0xFF),
            "model.safetensors: tensor .*weight has a value that is not a",
        ),
        ("rows", "weight_scale", lambda x: x[:-1], r"has shape \[255, 1\]; config.json asks for \[256, 1\]"),
        ("matrix", "weight_scale", None, "weight_scale is missing"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, tensor: str, change: Any, message: str) -> None:
    quantization, writer = WRITERS[name]
    checkpoint = made(LLAMA, quantization, writer)
    if change is None:
        del checkpoint.tensors[DOWN + tensor]
    else:
        checkpoint.tensors[DOWN + tensor] = change(checkpoint.tensors[DOWN + tensor])
    with pytest.raises(ModelError, match=message):
        loaded(checkpoint.write(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "bitsandbytes is not supported; use the unquantised checkpoint"),
        ({"quant_method": "auto-round"}, "export it in the form auto_gptq or auto_awq"),
        ({"quant_method": ["fp8"]}, r"quant_method \['fp8'\] is not supported; supported are"),
        ({"activation_scheme": "none"}, "activation_scheme 'none' is not supported"),
        ({"fmt": "e5m2"}, "fmt 'e5m2' is not supported"),
        ({"weight_block_size": [128]}, "weight_block_size must be two integers"),
        ({"weight_block_size": [128, 0]}, "weight_block_size must be of 1 to 4194304, not 0"),
        ({"weight_block_size": [128, 10**4000]}, "weight_block_size must be of 1 to 4194304"),
        ({"weight_block_size": [True, 128]}, "weight_block_size must be of 1 to 4194304, not True"),
        ({"modules_to_not_convert": [1]}, "must be a list of texts"),
        ({"modules_to_not_convert": ["*" * 10]}, "modules_to_not_convert: .* might take long"),
        ({"modules_to_convert": ["embed_tokens"]}, "modules_to_convert"),
        ({"bits": 8}, "bits is unknown, and might change what the model computes"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_config({**LLAMA, "quantization_config": {**BLOCKS, **changes}})


def test_a_flag_beside_a_quantised_checkpoint() -> None:
    blocks, rows = (parse_config({**LLAMA, "quantization_config": one}) for one in (BLOCKS, STATIC))
    assert rows.quantised("fp8") == rows
    assert blocks.quantised("none") == blocks
    with pytest.raises(ParameterError, match="int8: the checkpoint is quantised already, in fp8; leave it out"):
        rows.quantised("int8")
    with pytest.raises(ParameterError, match="quantised already, in fp8 in blocks of 128 x 128"):
        blocks.quantised("fp8")
