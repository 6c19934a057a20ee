"""Columns in groups by a tensor: codes lie sorted by group where all modules of a weight agree, else as values."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.errors import ModelError
from jaxinfer.models.loaded import LoadedModel, plan_model
from jaxinfer.quantization.scheme import Scheme
from tests.quantization.checkpoints import LLAMA, MOE, Checkpoint, assert_same_values, loaded, made
from tests.quantization.forms import GPTQ, config_of_groups, weights
from tests.quantization.writers import compressed_tensors as integers
from tests.quantization.writers.gptq import gptq

ORDER = {**GPTQ, "group_size": 32, "desc_act": True}
ORDERED = Scheme("int4", 32, ordered=True)
LAYER = "model.layers.0."


def checkpoint_of(config: dict[str, Any] = LLAMA, **others: Any) -> Checkpoint:
    return made(config, ORDER, partial(gptq, order="inputs", **others), left=("lm_head", "gate"))


def with_other_order(checkpoint: Checkpoint, module: str) -> Checkpoint:
    """One module is written anew, in an order of its own."""
    shape = checkpoint.plain[f"{module}.weight"].shape
    tensors, values = gptq(np.random.default_rng(7), module, *shape, order="module")
    plain = {**checkpoint.plain, f"{module}.weight": values}
    return Checkpoint(checkpoint.config, {**checkpoint.tensors, **tensors}, plain)


def loaded_same(checkpoint: Checkpoint, folder: Path, **options: Any) -> LoadedModel:
    return assert_same_values(checkpoint.write(folder / "q"), checkpoint.write_plain(folder / "p"), **options)


@pytest.mark.parametrize(
    ("first", "other", "weight"),
    [
        ("self_attn.q_proj", "self_attn.k_proj", "qkv"),
        ("self_attn.q_proj", "self_attn.v_proj", "qkv"),
        ("mlp.gate_proj", "mlp.up_proj", "gate_up"),
    ],
)
def test_a_weight_whose_modules_differ_is_held_as_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: str, other: str, weight: str
) -> None:
    checkpoint = with_other_order(checkpoint_of(), f"{LAYER}{other}")
    one, two = (kind.schemes for kind in loaded_same(checkpoint, tmp_path).config.layers)
    assert {name for name in ("qkv", "out", "gate_up", "down") if getattr(one, name) is None} == {weight}
    assert {two.qkv, two.out, two.gate_up, two.down, one.out, one.down} == {ORDERED}
    said, taken = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == (
        f"no one order of columns holds 1 of the weights: {LAYER}{first}.g_idx and {LAYER}{other}.g_idx differ"
    )
    shape = {"qkv": 512, "gate_up": 768}[weight]
    assert taken.startswith(f"weights in GPTQ of 4 bits in the order of activations take {shape * 256 * 4:,} bytes in")


def test_experts_have_an_order_each_and_one_that_has_none_is_held_as_values(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(MOE)
    orders = [checkpoint.tensors[f"{LAYER}mlp.experts.{expert}.down_proj.g_idx"] for expert in (0, 1)]
    assert (orders[0] != orders[1]).any()
    schemes = loaded_same(checkpoint, tmp_path / "alike").config.layers[0].schemes
    assert schemes.experts_gate_up == schemes.experts_down == ORDERED
    checkpoint = with_other_order(checkpoint, f"{LAYER}mlp.experts.2.up_proj")
    schemes = loaded_same(checkpoint, tmp_path / "other").config.layers[0].schemes
    assert (schemes.experts_gate_up, schemes.experts_down) == (None, ORDERED)


def test_groups_of_other_lengths_are_held_as_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A column of the first group has the scale of the second."""
    checkpoint, module = checkpoint_of(), f"{LAYER}mlp.down_proj"
    numbers = checkpoint.tensors[f"{module}.g_idx"]
    column, scales = int(np.flatnonzero(numbers == 0)[0]), checkpoint.tensors[f"{module}.scales"].astype(np.float32)
    numbers[column] = 1
    values = checkpoint.plain[f"{module}.weight"]
    values[:, column] = np.round(values[:, column] / scales[0]) * scales[1]
    assert loaded_same(checkpoint, tmp_path).config.layers[0].schemes.down is None
    assert f"{module}.g_idx groups differ in length" in caplog.text


def test_a_last_group_that_is_shorter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Groups of 96 of 256 columns."""
    checkpoint = checkpoint_of(group=96)
    checkpoint.config["quantization_config"] = {**ORDER, "group_size": 96}
    assert loaded_same(checkpoint, tmp_path).config.layers[0].schemes.qkv == ORDERED
    assert not caplog.records


def test_a_head(tmp_path: Path) -> None:
    """One of unequal groups is held as values, too."""
    checkpoint = made(LLAMA, {**ORDER, "lm_head": True}, partial(gptq, order="inputs"), left=())
    assert loaded_same(checkpoint, tmp_path / "one").config.tables.table == ORDERED
    checkpoint.tensors["lm_head.g_idx"] = checkpoint.tensors["lm_head.g_idx"] * 0
    checkpoint.plain["lm_head.weight"] = gptq_values(checkpoint.tensors, "lm_head")
    assert loaded_same(checkpoint, tmp_path / "other").config.tables.table is None


def gptq_values(tensors: dict[str, np.ndarray], module: str) -> np.ndarray:
    """Of 4 bits and zeros in the middle."""
    words, groups = tensors[f"{module}.qweight"].view(np.uint32), tensors[f"{module}.g_idx"]
    codes = np.stack([words >> np.uint32(4 * place) & 15 for place in range(8)], axis=1).reshape(-1, words.shape[1])
    return ((codes.astype(np.float32) - 8) * tensors[f"{module}.scales"][groups].astype(np.float32)).T


def test_compressed_tensors_with_orders_that_differ(tmp_path: Path) -> None:
    config = config_of_groups("pack-quantized", weights(4, "group", group_size=32, actorder="group"))
    checkpoint = made(LLAMA, config, partial(integers.ordered, order="module"))
    schemes = loaded_same(checkpoint, tmp_path).config.layers[1].schemes
    assert (schemes.qkv, schemes.out, schemes.gate_up, schemes.down) == (None, ORDERED, None, ORDERED)


def test_compressed_tensors_with_no_numbers_has_its_columns_as_they_lie(tmp_path: Path) -> None:
    """All numbers of a tensor are -1 then."""
    config = config_of_groups("pack-quantized", weights(4, "group", group_size=32, actorder="group"))
    checkpoint = made(LLAMA, config, partial(integers.ordered, order="columns"))
    for name in [name for name in checkpoint.tensors if name.endswith("g_idx")]:
        checkpoint.tensors[name] = checkpoint.tensors[name] * 0 - 1
    assert loaded_same(checkpoint, tmp_path / "all").config.layers[1].schemes.qkv == Scheme("int4", 32)
    checkpoint.tensors[f"{LAYER}mlp.down_proj.weight_g_idx"][200:] = 7
    with pytest.raises(ModelError, match=r"model.safetensors: tensor .*down_proj.weight_g_idx has a group"):
        loaded(checkpoint.write(tmp_path / "some"))


@pytest.mark.parametrize("group", [32, 96])
def test_columns_that_lie_in_order_need_none(tmp_path: Path, group: int) -> None:
    quantization = {**ORDER, "group_size": group, "lm_head": True}
    checkpoint = made(LLAMA, quantization, partial(gptq, order="columns", group=group), left=())
    config = loaded_same(checkpoint, tmp_path / "all").config
    schemes = config.layers[1].schemes
    assert {schemes.qkv, schemes.out, schemes.gate_up, config.tables.table} == {Scheme("int4", 32)}
    assert schemes.down == Scheme("int4", group)


def test_experts_have_no_order_where_the_columns_of_all_lie_in_order(tmp_path: Path) -> None:
    checkpoint = made(MOE, ORDER, partial(gptq, order="columns"), left=("lm_head", "gate"))
    schemes = loaded_same(checkpoint, tmp_path / "all").config.layers[0].schemes
    assert schemes.experts_gate_up == schemes.experts_down == Scheme("int4", 32)
    checkpoint = with_other_order(checkpoint, f"{LAYER}mlp.experts.2.down_proj")
    schemes = loaded_same(checkpoint, tmp_path / "one").config.layers[0].schemes
    assert (schemes.experts_gate_up, schemes.experts_down) == (Scheme("int4", 32), ORDERED)


def test_an_order_takes_32_bits_a_column(tmp_path: Path) -> None:
    model = loaded_same(checkpoint_of(), tmp_path)
    (down,) = (one for one in plan_model(model.config, model.dtype).weights if one.path == ("blocks", 0, "mlp", "down"))
    assert down.scheme == ORDERED
    assert 8 * down.bytes("types") == ORDERED.bits((256, 384)) == 256 * 384 * 4 + 256 * 12 * 32 + 384 * 32
