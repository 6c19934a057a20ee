"""ProgramStore: compiled programs in files, so that a start that finds its own traces and compiles nothing.

JAX's compile cache is asked after tracing, which takes longer than reading a program: a quarter of a second for each of
some thirty programs of a small model, and three times that for one of 28 layers.
"""

import hashlib
import logging
import os
import pickle
import shutil
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jaxinfer_kernels
from jax.experimental.serialize_executable import deserialize_and_load, serialize

import jaxinfer
from jaxinfer.engine.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.platform import processor
from jaxinfer.runner.program_table import Name
from jaxinfer.runner.xla_options import ENVIRONMENT, Options, described

log = logging.getLogger(__name__)

_FOLDERS_KEPT = 8
"""Sets of programs; the least recently used go first."""
_NO_MATTER = ("cache", "log", "dump", "traceback")
"""Settings of JAX with one of these in their names leave a program what it is."""


class ProgramStore:
    """The programs of one model, shapes, device and version of everything, in a folder of its own.

    A file that cannot be read, or a program that cannot be written, is as if it were not there. Files hold machine code
    and pickles: whoever can write to the folder can run code in this process, as with every compile cache.
    """

    def __init__(self, folder: Path, devices: Sequence[Any]):
        self._folder = folder
        self._devices = devices

    def __contains__(self, name: Name) -> bool:
        return self._file(name).exists()

    def load(self, name: Name) -> Any:
        """A program, or None."""
        try:
            program, inputs, outputs = pickle.loads(self._file(name).read_bytes())
            loaded = deserialize_and_load(
                program, inputs, outputs, self._devices[0].client, execution_devices=self._devices
            )
            os.utime(self._folder)
        except FileNotFoundError:
            return None
        except Exception as error:  # whatever it is, the program can be made again
            log.warning("a kept program is made again: %s: %s", self._file(name), error)
            return None
        return loaded

    def save(self, name: Name, compiled: Any) -> None:
        """Keeps a program. One that calls back into Python, as an interpreted kernel does, cannot be kept."""
        file = self._file(name)
        own = file.with_suffix(f".{os.getpid()}")
        try:
            if not self._folder.exists():
                self._folder.mkdir(mode=0o700, parents=True)
                _remove_oldest(self._folder.parent)
            own.write_bytes(pickle.dumps(serialize(compiled)))
            own.replace(file)
        except Exception as error:
            own.unlink(missing_ok=True)
            log.info("program %s is not kept: %s", file.name, error)

    def _file(self, name: Name) -> Path:
        return self._folder / f"{name[0]}-{name[1]}"


def open_store(
    cache: Path | None, model: LoadedModel, shapes: EngineShapes, backend: str, options: Options
) -> ProgramStore | None:
    """The store under a compile cache's folder for what programs follow from; None without a folder."""
    if cache is None:
        return None
    key = _digest(*_parts(model, shapes, backend, options))
    return ProgramStore(cache / "programs" / key, list(model.mesh.devices.flat))


def _parts(model: LoadedModel, shapes: EngineShapes, backend: str, options: Options) -> list[str]:
    """All that programs follow from: the code that makes them, what they are made for, and who compiles them."""
    devices = [(device.id, device.process_index, device.device_kind) for device in model.mesh.devices.flat]
    arrays = [(array.shape, str(array.dtype), str(array.sharding)) for array in (*model.weights, *model.head)]
    client = model.mesh.devices.flat[0].client
    versions = [version(name) for name in ("jax", "jaxlib", "flax")]
    settings = sorted((name, str(value)) for name, value in jax.config.values.items() if _matters(name))
    environment = [os.environ.get(name, "") for name in ENVIRONMENT]
    made_for = [model.config, model.dtype, model.kv_layout, model.mesh.shape, model.rules, arrays, shapes, backend]
    made_by = [described(options), devices, client.platform_version, processor(), versions, settings, environment]
    return [_source_digest(), *map(repr, (*made_for, *made_by))]


def _matters(setting: str) -> bool:
    return not any(word in setting for word in _NO_MATTER)


@cache
def _source_digest() -> str:
    """Of every line of this package and of its kernels."""
    folders = [Path(file).parent for file in (jaxinfer.__file__, jaxinfer_kernels.__file__) if file]
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    return _digest(*(f"{file.name}\n{file.read_text(encoding='utf-8')}" for file in files))


def _digest(*parts: str) -> str:
    """20 hexadecimal digits of all parts and where each ends."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _remove_oldest(folder: Path) -> None:
    sets = sorted(folder.iterdir(), key=lambda entry: entry.stat().st_mtime)
    for old in sets[:-_FOLDERS_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
