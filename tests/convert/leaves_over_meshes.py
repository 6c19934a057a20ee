"""Folders of leaves that one device has written and several, loaded on both."""

import json
from pathlib import Path

import pytest

from jaxinfer.errors import ModelError
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.rules import ShardingRules
from tests.convert.conversions import assert_equal_leaves, converted, loaded
from tests.models.goldens import GOLDENS
from tests.quantization.checkpoints import LLAMA, made
from tests.quantization.forms import FORMS

RULES = ShardingRules(mlp=(), expert_mlp=())  # few channels: they do not divide


def check(name: str, quantization: str, devices: int, folder: str) -> None:
    source, mesh = GOLDENS / name, MeshConfig({"tensor": devices}, RULES)
    if name == "groups":  # of 32 columns, which divide
        source = made({**LLAMA, "torch_dtype": "float32"}, {}, FORMS["fp8-rows"][1]).write_plain(Path(folder) / name)
    one = converted(source, Path(folder) / "one", "orbax", quantization=quantization)
    assert_equal_leaves(loaded(one, mesh=mesh), loaded(source, quantization, mesh))
    many = converted(source, Path(folder) / "many", "orbax", quantization=quantization, mesh=mesh)
    assert_equal_leaves(loaded(many, mesh=mesh), loaded(source, quantization, mesh))
    again = converted(many, Path(folder) / "again", "orbax")
    assert_equal_leaves(loaded(again), loaded(source, quantization))


def miss_a_chunk_of_copied_heads(folder: str) -> None:
    out = converted(GOLDENS / "qwen2", Path(folder) / "out", "orbax")
    (out / "leaves/blocks.1/blocks.1.attention.qkv/0.0.0.0").unlink()
    with pytest.raises(ModelError, match=r"attention.qkv/0.0.0.0.* is missing"):
        loaded(out, mesh=MeshConfig({"tensor": 4}, RULES))


def check_chunks(folder: str) -> None:
    out = converted(GOLDENS / "qwen2", Path(folder) / "out", "orbax", mesh=MeshConfig({"tensor": 2}))
    assert json.loads((out / "leaves" / "embed" / "embed" / ".zarray").read_text())["chunks"][0] == 48
