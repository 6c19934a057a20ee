"""Quantised checkpoints over two files and two devices: each device holds its part of what one holds."""

from pathlib import Path

import numpy as np
import pytest

from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.quantization.array import in_bytes
from tests.quantization.checkpoints import LLAMA, MOE, assert_same_values, loaded, made, write
from tests.quantization.forms import FORMS
from tests.runner.devices import run_on_devices

DENSE = {**LLAMA, "intermediate_size": 512, "num_hidden_layers": 1}
EXPERTS = {**MOE, "num_experts": 4, "moe_intermediate_size": 256, "num_hidden_layers": 1}


def check_parts(*paths: str) -> None:
    for folder in map(Path, paths):
        one = loaded(folder)
        of_experts = [MeshConfig({"expert": 2}), MeshConfig({"expert": 2, "tensor": 2})]
        sizes = [MeshConfig({"tensor": 2}), *(of_experts if folder.name.endswith("experts") else [])]
        for mesh in map(make_mesh, sizes):
            two = loaded(folder, mesh=mesh)
            split = 0
            for left, right in zip((*one.weights, *one.head), (*two.weights, *two.head), strict=True):
                np.testing.assert_array_equal(np.asarray(in_bytes(left)), np.asarray(right))  # one device packs int4
                split += right.addressable_shards[0].data.shape != right.shape
            assert split >= 2, (folder, split)


def folders(tmp_path: Path) -> list[Path]:
    """Two of each form, over two files."""
    found = []
    for name, (quantization, writer) in FORMS.items():
        for kind, config in (("dense", DENSE), ("experts", EXPERTS)):
            checkpoint = made(config, quantization, writer, left=("lm_head", "gate"))
            found.append(write(tmp_path / f"{name}-{kind}", checkpoint.config, checkpoint.tensors, files=2))
    return found


@pytest.mark.long
def test_each_device_holds_its_part(tmp_path: Path) -> None:
    run_on_devices(check_parts, 4, *map(str, folders(tmp_path)))


@pytest.mark.parametrize("name", FORMS)
def test_two_files(tmp_path: Path, name: str) -> None:
    checkpoint = made(DENSE, *FORMS[name], left=("lm_head",))
    folder = write(tmp_path / "q", checkpoint.config, checkpoint.tensors, files=2)
    assert_same_values(folder, checkpoint.write_plain(tmp_path / "p"))
