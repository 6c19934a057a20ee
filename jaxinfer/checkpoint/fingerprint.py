"""A fingerprint of a model's folder, by which hosts know whether they have the same one."""

import hashlib
from pathlib import Path

_SUFFIXES = (".safetensors", ".json", ".model", ".jinja")
_WHOLE = 1 << 20
"""Bytes up to which a file is read as a whole."""
_SAMPLES, _SAMPLE = 64, 4096


def fingerprint(folder: Path) -> str:
    """20 hexadecimal digits of the names, sizes and contents of the files of a folder and those below it. Of large
    files 64 samples of 4 KiB are read, the first and last bytes among them: two trainings differ everywhere."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and _counts(path)):
        size = file.stat().st_size
        digest.update(f"{file.relative_to(folder)} {size}\n".encode())
        with file.open("rb") as opened:
            if size <= _WHOLE:
                digest.update(opened.read())
                continue
            for number in range(_SAMPLES):
                opened.seek((size - _SAMPLE) * number // (_SAMPLES - 1))
                digest.update(opened.read(_SAMPLE))
    return digest.hexdigest()[:20]


def _counts(path: Path) -> bool:
    """Whether a file is a part of the model: of a folder of leaves every file is."""
    return path.suffix in _SUFFIXES or (path.parent.name != "" and path.suffix == "")
