"""Fingerprints of folders: the same for copies, others where anything of the model differs."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxinfer.checkpoint.fingerprint import fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    rng = np.random.default_rng(0)
    (path / "config.json").write_text("{}")
    tensors = {f"layers.{i}.weight": rng.standard_normal((400, 500), np.float32) for i in range(5)}
    save_file(tensors | {"norm.weight": np.ones(500, np.float32)}, path / "model.safetensors")
    return path


def _retrained(path: Path) -> None:
    """One layer of five."""
    tensors = load_file(path / "model.safetensors")
    tensors["layers.3.weight"] = tensors["layers.3.weight"] + np.float32(1e-3)
    save_file(tensors, path / "model.safetensors")


def _small(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    tensors["norm.weight"][17] = 2
    save_file(tensors, path / "model.safetensors")


def _renamed(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    tensors["layers.5.weight"] = tensors.pop("layers.4.weight")
    save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        _retrained,
        _small,
        _renamed,
        lambda path: (path / "config.json").write_text('{"rope_theta": 1}'),
        lambda path: (path / "chat_template.jinja").write_text("{{ messages }}"),
        lambda path: (path / "model.safetensors").unlink(),
    ],
)
def test_what_is_another_model(folder: Path, change: Callable[[Path], object]) -> None:
    before = fingerprint(folder)
    change(folder)
    assert fingerprint(folder) != before


def test_a_copy_is_the_same_whatever_lies_beside_it(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "another place"))
    (copy / ".git").mkdir()
    (copy / ".git" / "HEAD").write_text("ref: main")
    (copy / "README.md").write_text("a model")
    (copy / "original").mkdir()
    (copy / "original" / "params.json").write_text("{}")
    assert fingerprint(copy) == fingerprint(folder)


def test_a_file_that_is_none_of_safetensors_is_sampled(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * (3 << 20))
    assert len(fingerprint(folder)) == 20
