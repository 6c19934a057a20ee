"""A fingerprint of a model's folder, by which hosts know whether they have the same one."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from jaxinfer.checkpoint.leaves import holds_leaves

_SUFFIXES = (".safetensors", ".json", ".model", ".jinja")
_WHOLE = 1 << 20
"""Bytes up to which a file, or a tensor's values, are read as a whole."""
_SAMPLES, _SAMPLE = 64, 4096
_OF_TENSOR, _TENSOR_SAMPLE = 8, 512


def fingerprint(folder: Path) -> str:
    """20 hexadecimal digits of the names, sizes and contents of a model's files. Of large files samples are read: eight
    of 512 bytes of each tensor, its first and last bytes among them, or 64 of 4 KiB of what is no safetensors file."""
    digest = hashlib.sha256()
    for file in sorted(_files(folder)):
        size = file.stat().st_size
        digest.update(f"{file.relative_to(folder)} {size}\n".encode())
        with file.open("rb") as opened:
            for start, length in _parts(file, opened, size):
                opened.seek(start)
                digest.update(opened.read(length))
    return digest.hexdigest()[:20]


def _files(folder: Path) -> Iterator[Path]:
    """Yield all files of a folder of leaves, or the model's files of any other folder; hidden ones, such as git's, are
    left out."""
    every = folder.rglob("*") if holds_leaves(folder) else folder.glob("*")
    for path in every:
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and (path.suffix in _SUFFIXES or path.parent != folder):
            yield path


def _parts(file: Path, opened: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file that are read: begin and length of each, in bytes."""
    if size <= _WHOLE:
        yield 0, size
    elif file.suffix == ".safetensors" and (header := _header(opened)) is not None:
        start, tensors = header
        yield 0, start
        for tensor in tensors.values():
            first, last = tensor.get("data_offsets", (0, 0))
            yield from _samples(start + first, last - first, _OF_TENSOR, _TENSOR_SAMPLE)
    else:
        yield from _samples(0, size, _SAMPLES, _SAMPLE)


def _samples(first: int, size: int, count: int, length: int) -> Iterator[tuple[int, int]]:
    if size <= count * length:
        yield first, size
        return
    for number in range(count):
        yield first + (size - length) * number // (count - 1), length


def _header(opened: BinaryIO) -> tuple[int, dict[str, Any]] | None:
    """Return the offset of a safetensors file's values, and its tensors; None if it has no such header."""
    try:
        length = int.from_bytes(opened.read(8), "little")
        tensors = json.loads(opened.read(min(length, 100 << 20)))
    except (ValueError, UnicodeDecodeError):
        return None
    return (8 + length, tensors) if isinstance(tensors, dict) else None
