"""Headers and indexes made to break their reader."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.checkpoint.safetensors import INDEX, SINGLE, Checkpoint, Unused
from jaxinfer.checkpoint.sources import Tensor
from jaxinfer.errors import ModelError

SHORT = 400
"""Characters of an error, its file's path not counted."""


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


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "shape",
    [[2**62] * 80_000, [1] * 9, [-1, -16], [2**62, 0], [10**4000], [[1] * 80_000]],
    ids=["many", "nine", "negative", "large", "digits", "list"],
)
def test_an_absurd_shape_is_refused_in_few_words(tmp_path: Path, shape: list[Any]) -> None:
    """Multiplying the first one's lengths takes half a minute, in which no other thread runs."""
    write_header(tmp_path, json.dumps({"w": entry(shape, 0, 64)}).encode())
    with pytest.raises(ModelError, match="tensor w") as raised:
        Checkpoint(tmp_path)
    assert len(str(raised.value)) < len(str(tmp_path)) + SHORT


def test_eight_axes_are_read(tmp_path: Path) -> None:
    write_header(tmp_path, json.dumps({"w": entry([1, 2, 1, 2, 1, 2, 1, 2], 0, 64)}).encode())
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.read("w", (slice(None),)).shape == (1, 2, 1, 2, 1, 2, 1, 2)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": entry([8], 0, 32), "b": entry([9], 28, 64)}, "is corrupt: .*tensor `b`"),
        ({"a": entry([4], 0, 16), "b": entry([8], 32, 64)}, "is corrupt: .*tensor `b`"),
        ({"a": entry([8], 32, 64)}, "is corrupt: .*tensor `a`"),
        ({"a": entry([8], 0, 32)}, "is corrupt: .*not fully covered"),
    ],
    ids=["overlap", "gap", "start", "rest"],
)
def test_tensors_fill_the_file(tmp_path: Path, tensors: dict[str, Any], message: str) -> None:
    write_header(tmp_path, json.dumps(tensors).encode())
    with pytest.raises(ModelError, match=rf"model\.safetensors: .*{message}"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    "tensors",
    [
        {"n" * 10**5: entry([1], 0, 4, "F32")},
        {"w": entry([16], 0, 64, "F" * 10**5)},
        {"w": {"data_offsets": ["1" * 10**5, 1], "dtype": "F32", "shape": [1]}},
        {"w": {"data_offsets": "1" * 10**5, "dtype": "F32", "shape": [1]}},
        {"w": entry([1], 0, 10**4000)},
    ],
    ids=["name", "dtype", "offset", "offsets", "end"],
)
def test_errors_quote_little_of_a_header(tmp_path: Path, tensors: dict[str, Any]) -> None:
    write_header(tmp_path, json.dumps(tensors).encode())
    with pytest.raises(ModelError) as raised:
        Checkpoint(tmp_path).check([Tensor("w", (16,))], Unused())
    assert len(str(raised.value)) < len(str(tmp_path)) + SHORT


@pytest.mark.parametrize("weight_map", [{"n" * 10**5: "../x"}, {"w": "f" * 10**5 + "/x"}])
def test_errors_quote_little_of_an_index(tmp_path: Path, weight_map: dict[str, str]) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError) as raised:
        Checkpoint(tmp_path)
    assert len(str(raised.value)) < len(str(tmp_path)) + SHORT
