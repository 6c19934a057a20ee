"""Folders of leaves: what was loaded before is loaded again, bit for bit, on one device and on several."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxinfer.checkpoint.leaves import FOLDER, KEY
from jaxinfer.errors import ModelError, ParameterError
from jaxinfer.models.declared import read_declared
from jaxinfer.models.loaded import load_model
from tests.convert import leaves_over_meshes, restore_damaged
from tests.convert.conversions import assert_equal_leaves, converted, loaded, with_kv_scales
from tests.models.goldens import FAMILIES, GOLDENS
from tests.quantization.checkpoints import LLAMA, MOE, made
from tests.quantization.forms import FORMS
from tests.runner.devices import run_on_devices

SOME = ["qwen2", "qwen3_moe", "gpt_oss", "gemma3"]
"""Biases and two KV heads; experts; fused experts, sinks and biases; a tied head and windows."""


@pytest.mark.few(2)
@pytest.mark.parametrize("quantization", ["none", "int8", "int4", "fp8"])
@pytest.mark.parametrize("name", SOME)
def test_leaves_are_those_that_were_converted(name: str, quantization: str, tmp_path: Path) -> None:
    out = converted(GOLDENS / name, tmp_path / "out", "orbax", quantization=quantization)
    assert_equal_leaves(loaded(out), loaded(GOLDENS / name, quantization))
    assert_equal_leaves(loaded(out, quantization), loaded(GOLDENS / name, quantization))


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in SOME])
def test_every_family(name: str, tmp_path: Path) -> None:
    out = converted(GOLDENS / name, tmp_path / "out", "orbax", quantization="int8")
    assert_equal_leaves(loaded(out), loaded(GOLDENS / name, "int8"))


def test_short_types_and_the_stacked_layout(tmp_path: Path) -> None:
    out = converted(GOLDENS / "qwen3", tmp_path / "out", "orbax", dtype="bfloat16")
    assert_equal_leaves(loaded(out, dtype="bfloat16"), loaded(GOLDENS / "qwen3", dtype="bfloat16"))
    config = read_declared(out).config
    models = [load_model(folder, config, dtype=np.dtype("bfloat16"), layout="stacked") for folder in (out,)]
    plain = read_declared(GOLDENS / "qwen3").config
    assert_equal_leaves(models[0], load_model(GOLDENS / "qwen3", plain, dtype=np.dtype("bfloat16"), layout="stacked"))


@pytest.mark.few(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("config", [LLAMA, MOE], ids=["dense", "experts"])
def test_a_checkpoint_that_is_quantised_already(form: str, config: dict, tmp_path: Path) -> None:
    quantization, writer = FORMS[form]
    source = made(config, quantization, writer, left=("lm_head", "gate")).write(tmp_path / "source")
    out = converted(source, tmp_path / "out", "orbax")
    assert_equal_leaves(loaded(out), loaded(source))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "quantization", "devices"),
    [
        ("qwen2", "none", 2),
        ("qwen2", "int8", 4),
        ("groups", "int4", 4),
        pytest.param("groups", "int4", 2, marks=pytest.mark.long),
        pytest.param("qwen3_moe", "none", 2, marks=pytest.mark.long),
        pytest.param("qwen3_moe", "fp8", 2, marks=pytest.mark.long),
        pytest.param("gemma3", "int8", 4, marks=pytest.mark.long),
        ("mistral", "fp8", 5),
        pytest.param("gpt_oss", "int8", 4, marks=pytest.mark.long),
        pytest.param("cohere", "int8", 4, marks=pytest.mark.long),
        pytest.param("olmo3", "none", 4, marks=pytest.mark.long),
        pytest.param("internlm2_dynamic", "int8", 5, marks=pytest.mark.long),
    ],
)
def test_one_device_and_several(name: str, quantization: str, devices: int, tmp_path: Path) -> None:
    """Four devices copy two KV heads, or give a device a part of a tied table; on five there are heads and rows of
    zeros."""
    run_on_devices(leaves_over_meshes.check, devices, name, quantization, devices, str(tmp_path))


def test_another_type_or_scheme_is_refused(tmp_path: Path) -> None:
    out = converted(GOLDENS / "qwen2", tmp_path / "out", "orbax", quantization="int8")
    with pytest.raises(ModelError, match="dtype is 'float32' there and 'bfloat16' here; leaves"):
        loaded(out, dtype="bfloat16")
    with pytest.raises(ParameterError, match="int4: the folder's leaves are held in int8"):
        loaded(out, "int4")


@pytest.mark.parametrize(
    ("file", "change", "told"),
    [
        ("config.json", {"vocab_size": 90}, r"config.vocab_size is 96 there and 90 here.*leaves.embed.shape"),
        ("config.json", {"num_hidden_layers": 1, "layer_types": None}, r"has \d layers; config.json declares 1"),
        (KEY, {"format": 1}, "format is 1; 2 can be read: convert the model again"),
        (KEY, {"forms": {"qkv": "apart"}}, "forms.qkv is 'apart' there and .*; forms.gate_up is 'absent' there"),
        (KEY, {"tables": {"embed": {"codes": "int3"}}}, "is not the key of a folder of leaves: .*codes int3"),
        (KEY, {"layers": None}, "is not the key of a folder of leaves"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(file: str, change: dict, told: str, tmp_path: Path) -> None:
    path = converted(GOLDENS / "qwen2", tmp_path / "out", "orbax") / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelError, match=told):
        loaded(tmp_path / "out")


def test_leaves_that_are_missing_or_no_files_are_refused(tmp_path: Path) -> None:
    part = converted(GOLDENS / "qwen2", tmp_path / "out", "orbax") / FOLDER / "norm"
    chunk = next(part.rglob("0"))
    chunk.rename(tmp_path / "chunk")
    chunk.symlink_to(tmp_path / "chunk")
    with pytest.raises(ModelError, match="is not a regular file"):
        loaded(tmp_path / "out")
    chunk.unlink()
    array = chunk.parent / ".zarray"
    array.write_text(array.read_text().replace("[32]", "[33]"))
    with pytest.raises(ModelError, match=r"norm: the leaf is float32 \[33\].*asks for float32 \[32\]"):
        loaded(tmp_path / "out")
    (part / "norm").rename(tmp_path / "gone")
    with pytest.raises(ModelError, match=r"\.zarray: cannot be read"):
        loaded(tmp_path / "out")


def test_a_broken_chunk_is_an_error_that_names_the_part(tmp_path: Path) -> None:
    chunk = next((converted(GOLDENS / "qwen2", tmp_path / "out", "orbax") / FOLDER / "norm").rglob("0"))
    chunk.write_bytes(b"no chunk")
    with pytest.raises(ModelError, match="leaves/norm: cannot be read"):
        loaded(tmp_path / "out")


@pytest.mark.parametrize("leaf", ["embed/embed", "blocks.1/blocks.1.mlp.down", "vectors/vectors.leaves.input_norm"])
def test_a_missing_chunk_is_an_error_that_names_it(leaf: str, tmp_path: Path) -> None:
    """Zarr's own rule is that it holds zeros."""
    out = converted(GOLDENS / "qwen2", tmp_path / "out", "orbax")
    (out / FOLDER / leaf / "0.0").unlink()
    told = f"cannot be read: .*{leaf}/0.0.* is missing"
    with pytest.raises(ModelError, match=told):
        loaded(out)
    for to in ("safetensors", "orbax"):
        with pytest.raises(ModelError, match=told):
            converted(out, tmp_path / to, to)


@pytest.mark.long
def test_a_missing_chunk_of_copied_heads(tmp_path: Path) -> None:
    run_on_devices(leaves_over_meshes.miss_a_chunk_of_copied_heads, 4, str(tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("damage", ["missing", "cut off"])
def test_a_damaged_chunk_is_one_error_though_others_are_being_read(damage: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", restore_damaged.__name__, str(tmp_path), damage]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "blocks.0: cannot be read" in found.stdout
    assert "blocks.0.a/0.0" in found.stdout
    assert not found.stderr


@pytest.mark.long
def test_chunks_are_those_of_a_mesh(tmp_path: Path) -> None:
    run_on_devices(leaves_over_meshes.check_chunks, 2, str(tmp_path))


def test_kv_scales_of_the_checkpoint_are_held(tmp_path: Path) -> None:
    source = with_kv_scales(tmp_path / "source", ("self_attn.k_scale", "self_attn.v_scale"))
    out = converted(source, tmp_path / "out", "orbax")

    def kept(folder: Path):
        config = read_declared(folder).config.keeping("float8_e4m3fn")
        return load_model(folder, config, dtype=np.dtype("float32"))

    assert kept(out).config.kv_scales is not None
    assert_equal_leaves(kept(out), kept(source))
