"""Checkpoints of compressed-tensors: the weights that are loaded are those that were written."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.errors import ModelError
from jaxinfer.model_config.registry import parse_config
from jaxinfer.quantization.scheme import Scheme
from tests.quantization.checkpoints import LLAMA, MOE, Writer, assert_same_values, config_of, loaded, made
from tests.quantization.forms import IGNORE, TOKEN, config_of_groups, weights
from tests.quantization.writers import compressed_tensors as integers
from tests.quantization.writers import fp8

Case = tuple[str, dict[str, Any], Writer, Scheme | None]
PACKED, WHOLE = integers.packed, integers.whole
CASES: dict[str, Case] = {
    "w4a16": ("pack-quantized", weights(4, "group", group_size=32), PACKED, Scheme("int4", 32)),
    "w4a16-rows": ("pack-quantized", weights(4, "channel"), partial(PACKED, group=None), Scheme("int4")),
    "w4a16-zeros": (
        "pack-quantized",
        weights(4, "group", group_size=64, symmetric=False),
        partial(PACKED, group=64, zeros=True),
        Scheme("int4", 64, zeros=True),
    ),
    "w4a16-rows-zeros": (
        "pack-quantized",
        weights(4, "channel", symmetric=False),
        partial(PACKED, group=None, zeros=True),
        Scheme("int4", zeros=True),
    ),
    "w4a16-order": (
        "pack-quantized",
        weights(4, "group", group_size=32, actorder="group"),
        integers.ordered,
        Scheme("int4", 32, ordered=True),
    ),
    "w8a16": ("pack-quantized", weights(8, "group", group_size=32), partial(PACKED, bits=8), Scheme("int8", 32)),
    "w8a16-zeros": (
        "pack-quantized",
        weights(8, "channel", symmetric=False),
        partial(PACKED, bits=8, group=None, zeros=True),
        Scheme("int8", zeros=True),
    ),
    "w8": ("int-quantized", weights(8, "channel"), WHOLE, Scheme("int8")),
    "w8-naive": ("naive-quantized", weights(8, "tensor"), partial(WHOLE, shape=(1,)), Scheme("int8")),
    "w8-zeros": (
        "int-quantized",
        weights(8, "group", group_size=64, symmetric=False),
        partial(WHOLE, group=64, zeros=True),
        Scheme("int8", 64, zeros=True),
    ),
    "fp8-rows": ("float-quantized", weights(8, "channel", type="float"), fp8.by_row, Scheme("e4m3")),
    "fp8-matrix": (
        "naive-quantized",
        weights(8, "tensor", type="float"),
        partial(fp8.by_matrix, shape=(1,)),
        Scheme("e4m3"),
    ),
    "fp8-blocks": (
        "float-quantized",
        weights(8, "block", type="float", block_structure=[128, 128]),
        partial(fp8.by_blocks, name="weight_scale"),
        Scheme("e4m3", 128),
    ),
}


def same(tmp_path: Path, config: dict[str, Any], quantization: dict[str, Any], writer: Writer, **options: Any):
    checkpoint = made(config, quantization, writer, left=("lm_head", "gate"))
    folder, plain = checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p")
    return assert_same_values(folder, plain, **options)


@pytest.mark.few(15)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("config", [LLAMA, MOE], ids=["dense", "experts"])
def test_values_are_those_that_were_written(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    form, args, writer, scheme = CASES[name]
    schemes = same(tmp_path, config, config_of_groups(form, args), writer).config.layers[1].schemes
    assert {schemes.qkv, schemes.down or schemes.experts_down} == {scheme}


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_heads(tmp_path: Path, kv_heads: int, head_dim: int) -> None:
    form, args, writer, _ = CASES["w4a16-zeros"]
    heads = {"num_attention_heads": 8, "num_key_value_heads": kv_heads, "head_dim": head_dim, "num_hidden_layers": 1}
    same(tmp_path, {**LLAMA, **heads}, config_of_groups(form, args), writer)


@pytest.mark.parametrize("size", [11008, 14336])
def test_large_mlps(tmp_path: Path, size: int) -> None:
    form, args, writer, _ = CASES["w4a16-zeros"]
    config = {**LLAMA, "intermediate_size": size, "hidden_size": 64, "num_hidden_layers": 1}
    same(tmp_path, config, config_of_groups(form, args), writer)


def test_an_older_name_of_the_setting(tmp_path: Path) -> None:
    form, args, writer, scheme = CASES["w4a16"]
    quantization = config_of_groups(form, args)
    del quantization["quant_method"]
    checkpoint = made(LLAMA, quantization, writer)
    checkpoint.config["compression_config"] = checkpoint.config.pop("quantization_config")
    assert config_of(checkpoint.write(tmp_path)).layers[0].schemes.qkv == scheme


def test_activations_are_rounded_where_the_file_asks_for_it(tmp_path: Path) -> None:
    config = config_of_groups("int-quantized", weights(8, "channel"), input_activations=TOKEN)
    model = same(tmp_path, LLAMA, config, WHOLE)
    assert model.config.layers[0].schemes.qkv == Scheme("int8", activations="int8")


@pytest.mark.parametrize("change", [{"symmetric": False}, {"dynamic": False, "strategy": "tensor"}])
def test_other_activations_stay(tmp_path: Path, change: dict[str, Any]) -> None:
    config = config_of_groups("int-quantized", weights(8, "channel"), input_activations={**TOKEN, **change})
    assert same(tmp_path, LLAMA, config, WHOLE).config.layers[0].schemes.qkv == Scheme("int8")


def test_the_head_and_routers_where_they_are_not_left_out(tmp_path: Path) -> None:
    """A router is never held quantised: its values are read."""
    config = {**config_of_groups("pack-quantized", weights(4, "group", group_size=32)), "ignore": []}
    checkpoint = made(MOE, config, PACKED, left=())
    model = assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"))
    assert model.config.tables.table == Scheme("int4", 32)


def test_groups_of_modules_differ(tmp_path: Path) -> None:
    """Names come before regular expressions and classes."""
    config = config_of_groups("mixed-precision", weights(4, "group", group_size=32), format="pack-quantized")
    other = config_of_groups("", weights(8, "channel"), targets=["re:.*self_attn.*"], format="int-quantized")
    config["config_groups"]["group_1"] = other["config_groups"]["group_0"]

    def writer(rng: np.random.Generator, module: str, rows: int, depth: int):
        return (WHOLE if "self_attn" in module else PACKED)(rng, module, rows, depth)

    schemes = same(tmp_path, LLAMA, config, writer).config.layers[0].schemes
    assert (schemes.qkv, schemes.gate_up) == (Scheme("int8"), Scheme("int4", 32))


def test_modules_that_become_one_weight_have_one_form(tmp_path: Path) -> None:
    config = config_of_groups("pack-quantized", weights(4, "group", group_size=32))
    config["ignore"] = [*IGNORE, "model.layers.1.self_attn.k_proj"]
    checkpoint = made(LLAMA, config, PACKED)
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.q_proj is Integers.*k_proj is not quantised"):
        config_of(checkpoint.write(tmp_path))


@pytest.mark.parametrize(
    "pattern",
    [
        ".*lm_head",
        "visual.*",
        "^model\\.vision_tower.*$",
        ".*(q|k|v)_proj$",
        r"model.layers.\d+.mlp.(gate|up)_proj",
        r"(?:model\.)?(language_model\.)?layers\.\d+\.(self_attn|mlp)\.(q|k|v|o|gate|up|down)_proj",
        r".*layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj.*",
        r".*?\.[0-9]+?\.mlp\.[*?|(]*",
    ],
)
def test_patterns_as_tools_write_them(pattern: str) -> None:
    config = config_of_groups("pack-quantized", weights(4, "group", group_size=32))
    parse_config({**LLAMA, "quantization_config": {**config, "ignore": [f"re:{pattern}x"] * 3}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "marlin-24"}, "format 'marlin-24' of weights in int4 is not supported"),
        ({"format": None}, "format 'mixed-precision' of weights"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config is set"),
        ({"transform_config": {"config_groups": {}}}, "transform_config .* is not supported"),
        ({"quantization_status": "calibration"}, "quantization_status 'calibration'"),
        ({"config_groups": None}, "config_groups is missing"),
        ({"surprising_scale": 2}, "quantization_config: surprising_scale is unknown"),
        ({"ignore": "lm_head"}, "ignore must be a list of texts"),
        ({"ignore": ["re:(a+)+$"]}, "might take long"),
        ({"ignore": ["re:" + ".?" * 95 + "!"]}, "ignore: .* might take long to match: at most 262,144 steps"),
        ({"ignore": ["re:" + ".?" * 28 + "!"]}, "might take long"),
        ({"ignore": ["re:" + r"\(?" * 28 + "!"]}, "might take long"),
        ({"ignore": ["re:" + "}?" * 28 + "!"]}, "might take long"),
        ({"ignore": ["re:" + "(.|..)" * 33 + "!"]}, "might take long"),
        ({"ignore": ["re:.*.*.*.*.*!"]}, "might take long"),
        ({"ignore": [r"re:(.*)\1!"]}, "backreferences"),
        ({"ignore": ["re:(?=.*.*)!"]}, "lookarounds"),
        ({"ignore": ["re:(?x)(a+) *!"]}, "extensions"),
        (
            {"ignore": [f"re:.*.*.*.*!{i}" for i in range(500)]},
            "quantization_config has patterns of modules that might take 32,768,000 steps .* at most 1,048,576",
        ),
        ({"ignore": ["re:("]}, "is not a regular expression"),
        ({"ignore": ["re:" + "a" * 1000]}, "might take long"),
        ({"weights": {"num_bits": 3}}, "weights in int3"),
        ({"weights": {"dynamic": True}}, "dynamic True is not supported"),
        ({"weights": {"strategy": "block"}}, "strategy block of integers"),
        ({"weights": {"group_size": 0}}, "group_size must be of 1 to 4194304"),
        ({"weights": {"group_size": 10**9}}, "group_size must be of 1 to 4194304"),
        ({"weights": {"num_bits": 10**9}}, "is not supported"),
        ({"weights": {"actorder": "odd"}}, "actorder 'odd'"),
        ({"weights": {"surprising_scale": 2}}, "weights: surprising_scale is unknown"),
        ({"weights": {"group_size": 96}}, None),
        ({"targets": ["LlamaAttention"]}, "targets 'LlamaAttention' is not supported"),
    ],
)
def test_refused(tmp_path: Path, changes: dict[str, Any], message: str | None) -> None:
    config = config_of_groups("pack-quantized", weights(4, "group", group_size=32))
    group = config["config_groups"]["group_0"]
    group["weights"] |= changes.pop("weights", {})
    group |= {key: changes.pop(key) for key in ("targets",) if key in changes}
    checkpoint = made(LLAMA, {**config, **changes}, PACKED)
    folder = checkpoint.write(tmp_path)
    if message is None:
        assert config_of(folder).layers[0].schemes.qkv == Scheme("int4", 32)  # what 256 and 96 have in common
        return
    with pytest.raises(ModelError, match=message):
        config_of(folder)


def test_patterns_that_might_take_long_with_all_modules_are_refused() -> None:
    quantization = config_of_groups("pack-quantized", weights(4, "group", group_size=64))
    quantization["ignore"] = [f"re:.*.*.*.*!{i}" for i in range(16)]
    with pytest.raises(ModelError, match="1,048,576 steps to match with each of 1,400 names of modules; at most"):
        parse_config({**LLAMA, "num_hidden_layers": 200, "quantization_config": quantization})


DOWN = "model.layers.0.mlp.down_proj."


@pytest.mark.parametrize(
    ("name", "tensor", "change", "message"),
    [
        ("w4a16", "weight_packed", lambda x: x[:, 1:], r"down_proj.weight_packed has shape \[256, 47\]"),
        ("w4a16", "weight_packed", lambda x: x.astype(np.int64), "weight_packed is I64; I32 can be read"),
        ("w4a16", "weight_scale", None, "weight_scale is missing"),
        ("w4a16", "weight_scale", lambda x: x * np.nan, "model.safetensors: tensor .*weight_scale has a scale"),
        ("w4a16-zeros", "weight_zero_point", None, "weight_zero_point is missing"),
        ("w4a16-order", "weight_g_idx", lambda x: x + 1, "weight_g_idx has a group that is not among the 12"),
        ("w4a16-order", "weight_g_idx", lambda x: x - 1, "weight_g_idx has a group"),
        ("w4a16-order", "weight_g_idx", lambda x: x[1:], r"has shape \[383\]"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, tensor: str, change: Any, message: str) -> None:
    form, args, writer, _ = CASES[name]
    checkpoint = made(LLAMA, config_of_groups(form, args), writer)
    if change is None:
        del checkpoint.tensors[DOWN + tensor]
    else:
        checkpoint.tensors[DOWN + tensor] = change(checkpoint.tensors[DOWN + tensor])
    with pytest.raises(ModelError, match=message):
        loaded(checkpoint.write(tmp_path))
