"""ProgramStore: compiled programs in files, so that a start that finds its own traces and compiles nothing.

JAX's compile cache is asked after tracing, which takes longer than reading a program: a quarter of a second for each of
some thirty programs of a small model, and three times that for one of 28 layers.
"""

import contextlib
import hashlib
import logging
import os
import pickle
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax.experimental.serialize_executable import deserialize_and_load, serialize

from jaxinfer.engine.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.program_key import program_key
from jaxinfer.runner.program_table import Name
from jaxinfer.runner.xla_options import Options

log = logging.getLogger(__name__)

_FOLDERS_KEPT = 8
"""Sets of programs; the least recently used go first."""
_DIGEST_BYTES = hashlib.sha256().digest_size


class ProgramStore:
    """The programs of one model, shapes, device and version of everything, in a folder of its own.

    A file that cannot be read, or a program that cannot be written, is as if it were not there. Files hold machine code
    and pickles behind their SHA-256: whoever can write to the folder can run code in this process, as with every
    compile cache. writable: whether anything can be kept.
    """

    def __init__(self, folder: Path, devices: Sequence[Any]):
        self._folder = folder
        self._devices = devices
        self.writable = _prepare(folder)

    def load(self, name: Name) -> Any:
        """A program, or None."""
        file = self._file(name)
        try:
            kept = file.read_bytes()
            if hashlib.sha256(kept[_DIGEST_BYTES:]).digest() != kept[:_DIGEST_BYTES]:
                raise ValueError("the file is damaged")
            program, inputs, outputs = pickle.loads(kept[_DIGEST_BYTES:])
            client = self._devices[0].client
            return deserialize_and_load(program, inputs, outputs, client, execution_devices=self._devices)
        except FileNotFoundError:
            return None
        except Exception as error:  # whatever it is, the program can be made again
            log.warning("a kept program is made again: %s: %s", file, error)
            return None

    def save(self, name: Name, compiled: Any) -> None:
        """Keeps a program. One that calls back into Python, as an interpreted kernel does, cannot be kept."""
        try:
            kept = pickle.dumps(serialize(compiled))
            self._write(self._file(name), hashlib.sha256(kept).digest() + kept)
        except Exception as error:
            log.info("program %s %d is not kept: %s", *name, error)

    def _write(self, file: Path, content: bytes) -> None:
        descriptor, own = tempfile.mkstemp(dir=self._folder, prefix=".")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            os.replace(own, file)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(own)
            raise

    def _file(self, name: Name) -> Path:
        return self._folder / f"{name[0]}-{name[1]}"


def open_store(
    cache: Path | None, model: LoadedModel, shapes: EngineShapes, backend: str, options: Options
) -> ProgramStore | None:
    """The store under a compile cache's folder for what programs follow from; None without a folder."""
    if cache is None:
        return None
    key = program_key(model, shapes, backend, options)
    return ProgramStore(cache / "programs" / key, list(model.mesh.devices.flat))


def _prepare(folder: Path) -> bool:
    """Makes the folder, or notes its use, and removes those used least recently. True where it can be written to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(folder)
        _remove_oldest(folder.parent)
    except OSError as error:
        log.info("programs of other starts stay as they are: %s", error)
    return os.access(folder, os.W_OK | os.X_OK)


def _remove_oldest(folder: Path) -> None:
    sets = sorted(folder.iterdir(), key=lambda entry: entry.stat().st_mtime)
    for old in sets[:-_FOLDERS_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
