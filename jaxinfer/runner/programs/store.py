"""ProgramStore: compiled programs in files, so that a start that finds its own traces and compiles nothing.

JAX's compile cache is asked after tracing, which takes longer than reading a program: a quarter of a second for each of
some thirty programs of a small model, and three times that for one of 28 layers.
"""

import hashlib
import hmac
import logging
import os
import pickle
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax.experimental.serialize_executable import deserialize_and_load, serialize

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.platform.compile_cache import UNUSED_SECONDS, CompileCache
from jaxinfer.runner.platform.owner_only import NotPrivateError
from jaxinfer.runner.platform.xla_options import Options
from jaxinfer.runner.programs.key import program_key
from jaxinfer.runner.programs.table import Name

log = logging.getLogger(__name__)

_MOST_BYTES = 8 * 2**30
"""Most bytes of all sets of programs; one takes some 10 to 200 MB. The least recently used are removed first."""
_LIVE_SECONDS = 24 * 3600.0
"""A set that a start used since stays whatever its size: its engine may still run, and start again."""
_SIGNATURE_BYTES = hashlib.sha256().digest_size
_ABANDONED_SECONDS = 3600.0


class ProgramStore:
    """The programs of one model, shapes, device and version of everything, in a folder of its own.

    A file that cannot be read, or a program that cannot be written, is as if it were not there. Files hold machine code
    and pickles, which run when they are loaded, behind a signature by the cache's key: what was
    signed by another key, or by none, is not loaded. writable: whether anything can be kept.
    """

    def __init__(self, cache: CompileCache, name: str, devices: Sequence[Any]):
        self._cache = cache
        self._folder = cache.folder / "programs" / name
        self._devices = devices
        self.writable = _prepare(cache, self._folder)

    def has(self, name: Name) -> bool:
        """Return whether a file of a program is there; it may be damaged."""
        return self._file(name).is_file()

    def load(self, name: Name) -> Any:
        """A program, or None."""
        file = self._file(name)
        try:
            kept = self._cache.read(file)
            if not hmac.compare_digest(self._signature(file, kept[_SIGNATURE_BYTES:]), kept[:_SIGNATURE_BYTES]):
                raise ValueError("the file is damaged, or another's")
            program, inputs, outputs = pickle.loads(kept[_SIGNATURE_BYTES:])
            client = self._devices[0].client
            return deserialize_and_load(program, inputs, outputs, client, execution_devices=self._devices)
        except FileNotFoundError:
            return None
        except Exception as error:  # whatever it is, the program can be made again
            log.warning("a kept program is made again: %s: %s", file, error)
            return None

    def save(self, name: Name, compiled: Any) -> bool:
        """Keep a program; False if it cannot be, as one that calls back into Python, like an interpreted kernel."""
        try:
            kept = pickle.dumps(serialize(compiled))
            self._cache.write(self._file(name), self._signature(self._file(name), kept) + kept)
        except Exception as error:
            log.info("program %s %d is not kept: %s", *name, error)
            return False
        return True

    def _signature(self, file: Path, content: bytes) -> bytes:
        return self._cache.signature(f"{self._folder.name}/{file.name}", content)

    def _file(self, name: Name) -> Path:
        return self._folder / f"{name[0]}-{name[1]}"


def open_store(
    cache: CompileCache | None, model: LoadedModel, shapes: EngineShapes, options: Options
) -> ProgramStore | None:
    """The store in a compile cache for what programs follow from; None without a cache."""
    if cache is None:
        return None
    return ProgramStore(cache, program_key(model, shapes, options), list(model.mesh.devices.flat))


def _prepare(cache: CompileCache, folder: Path) -> bool:
    """Makes the folder, or notes its use, and removes those not used for long. True where it can be written to."""
    try:
        cache.make_folder(folder.parent)
        cache.make_folder(folder)
        if not cache.shared:  # servers that only read do not tell that they use a set
            os.utime(folder)
            _remove_unused(folder)
            _remove_abandoned(folder)
    except NotPrivateError as error:
        log.warning("programs are not kept: %s: %s", error.filename, error.strerror)
        return False
    except OSError as error:
        log.info("programs of other starts stay as they are: %s", error)
    return os.access(folder, os.W_OK | os.X_OK)


def _remove_unused(own: Path) -> None:
    """Removes the sets beside `own` that were not used for a month, and the oldest where all take too much."""
    used = {entry: entry.stat().st_mtime for entry in own.parent.iterdir()}
    now, size = time.time(), 0
    for entry in sorted(used, key=used.__getitem__, reverse=True):
        size, age = size + _size(entry), now - used[entry]
        if entry != own and age > (_LIVE_SECONDS if size > _MOST_BYTES else UNUSED_SECONDS):
            shutil.rmtree(entry, ignore_errors=True)


def _size(folder: Path) -> int:
    """Bytes of the files in it."""
    with os.scandir(folder) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)


def _remove_abandoned(folder: Path) -> None:
    """Removes what processes that were killed have begun to write."""
    for file in folder.glob(".*"):
        if time.time() - file.stat().st_mtime > _ABANDONED_SECONDS:
            file.unlink(missing_ok=True)
