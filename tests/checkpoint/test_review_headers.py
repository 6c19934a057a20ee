"""Headers and indexes made to break their reader."""

import json
import struct
from pathlib import Path

import pytest

from jaxinfer.checkpoint.safetensors import INDEX, SINGLE, Checkpoint
from jaxinfer.errors import ModelError


def write_header(folder: Path, header: bytes) -> None:
    (folder / SINGLE).write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))


@pytest.mark.parametrize("entry", [
    '{"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}',
    '{"dtype": "F32", "shape": [1], "data_offsets": [0, Infinity]}',
])  # fmt: skip
def test_infinite_sizes_are_refused(tmp_path: Path, entry: str) -> None:
    write_header(tmp_path, f'{{"w": {entry}}}'.encode())
    with pytest.raises(ModelError, match="tensor w"):
        Checkpoint(tmp_path)


def test_deep_headers_are_refused(tmp_path: Path) -> None:
    write_header(tmp_path, b'{"w": ' + b"[" * 200_000)
    with pytest.raises(ModelError, match=SINGLE):
        Checkpoint(tmp_path)


def test_deep_indexes_are_refused(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("[" * 200_000)
    with pytest.raises(ModelError, match=INDEX):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["..", ".", "", "../model.safetensors", "/etc/passwd", "sub/model.safetensors"])
def test_an_index_names_files_of_its_folder_only(tmp_path: Path, name: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(ModelError):
        Checkpoint(tmp_path)
