"""Leaves: a folder of weights as an engine holds them, written by `jaxinfer convert --to orbax`.

Each part of the model is a checkpoint of orbax, whose arrays are zarr. What a device takes as it lies is restored by
orbax, each shard from the chunks that hold it; anything else is read in slices by TensorStore. Both are imported when
they are needed.
"""

import asyncio
import logging
import math
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401  from then on NumPy knows short floats
import numpy as np

from jaxinfer.checkpoint.sources import Index, Source, TensorFault
from jaxinfer.errors import ModelError, shortened
from jaxinfer.folder_files import is_there, read_object

if TYPE_CHECKING:
    import jax
    from orbax.checkpoint import Checkpointer, RestoreArgs
    from orbax.checkpoint.type_handlers import ParamInfo

KEY = "jaxinfer_leaves.json"
"""The file with the key of everything that the leaves depend on; a folder with it holds leaves."""
FOLDER = "leaves"
"""The folder of their parts."""
_COMMITTED = "commit_success.txt"
"""File in which orbax writes a part's path when the part is complete; only object stores need it."""
CHUNK_BYTES = 32 * 2**20
"""Most bytes of a leaf that are compressed together: threads read chunks, and shards little that they do not need."""
_MOST_TOLD = 500
"""Characters of an error of TensorStore, which has the path of a chunk in it."""


def holds_leaves(folder: Path) -> bool:
    """Return whether a model folder's weights are leaves instead of safetensors."""
    return is_there(folder / KEY)


def read_key(folder: Path) -> dict[str, Any]:
    """The key of a folder's leaves. Raises ModelError."""
    return read_object(folder / KEY)


def part_of(leaf: str) -> str:
    """The part of the folder that a leaf is in: those of one layer's matrices are together."""
    words = leaf.split(".")
    return ".".join(words[:2]) if words[0] == "blocks" else words[0]


class Leaves:
    """The leaves of a folder, by name."""

    def __init__(self, folder: Path, wanted: Mapping[str, tuple[tuple[int, ...], str]]):
        """wanted: shape and type of each. Raises ModelError, naming it, for one that is missing or another."""
        self._folder, self._wanted = folder, dict(wanted)
        self._open: dict[str, Any] = {}
        for part in dict.fromkeys(map(part_of, wanted)):
            _check_files(folder / FOLDER / part)
        for name, (shape, dtype) in wanted.items():
            found = _described(self._path(name))
            if found != (shape, dtype):
                given, asked = _form(*found), _form(shape, dtype)
                raise ModelError(f"{self._path(name)}: the leaf is {given}; {folder / KEY} asks for {asked}")

    def size(self, names: Iterable[str]) -> int:
        """Bytes of these leaves, not compressed."""
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in map(self._wanted.__getitem__, names))

    def read_source(self, source: Source, index: Index) -> np.ndarray:
        """The part `index` of a source over leaves. Raises ModelError."""
        try:
            return source.read(index, self.read)
        except TensorFault as fault:
            raise ModelError(f"{self._folder}: leaf {fault.tensor} {fault}") from None

    def read(self, name: str, index: Index) -> np.ndarray:
        """The part `index` of a leaf. Raises ModelError where it cannot be read."""
        import tensorstore

        try:
            if name not in self._open:
                store = {"driver": "file", "path": f"{self._path(name)}/"}
                # Zarr reads a missing chunk as zeros; orbax writes all of them.
                spec = {"driver": "zarr", "kvstore": store, "fill_missing_data_reads": False}
                self._open[name] = tensorstore.open(spec, open=True).result()
            return np.asarray(self._open[name][index or ...].read().result())
        except (ValueError, OSError) as error:
            raise _unreadable(self._path(name), error) from error

    def restore(self, wanted: Mapping[str, Any]) -> "dict[str, jax.Array]":
        """Leaves of one part as they lie. wanted: the sharding of each, in JAX's terms. Raises ModelError."""
        import orbax.checkpoint as orbax

        _quiet()
        names = list(wanted)
        path = self._folder / FOLDER / part_of(names[0])
        how = {
            name: orbax.ArrayRestoreArgs(sharding=place, dtype=np.dtype(self._wanted[name][1]))
            for name, place in wanted.items()
        }
        try:
            with _reading_checkpointer() as checkpointer:
                args = orbax.args.PyTreeRestore(item=how, restore_args=how, partial_restore=True)
                return checkpointer.restore(path.resolve(), args=args)
        except Exception as error:  # orbax raises it bare, around TensorStore's
            raise _unreadable(path, error.__cause__ or error) from error

    def _path(self, name: str) -> Path:
        return self._folder / FOLDER / part_of(name) / name


def save_part(path: Path, arrays: "Mapping[str, jax.Array]") -> None:
    """Writes the leaves of one part; a run that is killed leaves no folder of this name. Raises OSError."""
    import orbax.checkpoint as orbax

    _quiet()
    how = {name: orbax.SaveArgs(chunk_byte_size=CHUNK_BYTES) for name in arrays}
    with orbax.PyTreeCheckpointer(use_ocdbt=False) as checkpointer:
        checkpointer.save(path.resolve(), args=orbax.args.PyTreeSave(dict(arrays), save_args=how))
    (path / _COMMITTED).unlink(missing_ok=True)


def _reading_checkpointer() -> "Checkpointer":
    """Waits for all reads where one fails: orbax would close its event loop while they are under way, and each would
    write a traceback to stderr, with all of TensorStore's settings."""
    import jax
    import orbax.checkpoint as orbax

    class Arrays(orbax.type_handlers.ArrayHandler):
        async def deserialize(
            self, infos: "Sequence[ParamInfo]", args: "Sequence[RestoreArgs] | None" = None
        ) -> "Sequence[jax.Array]":
            before = asyncio.all_tasks()
            try:
                return await super().deserialize(infos, args)
            except Exception:
                if reads := asyncio.all_tasks() - before:
                    await asyncio.wait(reads)
                raise

    registry = orbax.type_handlers.create_type_handler_registry((jax.Array, Arrays()))
    return orbax.Checkpointer(orbax.PyTreeCheckpointHandler(use_ocdbt=False, type_handler_registry=registry))


def _unreadable(path: Path, error: BaseException) -> ModelError:
    return ModelError(f"{path}: cannot be read: {shortened(str(error), _MOST_TOLD)}")


def _quiet() -> None:
    """Orbax warns of each part that it is in the older of its two forms, which is the one that slices are read of."""
    logging.getLogger("absl").setLevel(logging.ERROR)


def _check_files(part: Path) -> None:
    """Somebody else has made them: TensorStore would follow a link, and wait for a FIFO."""
    if not part.is_dir() or part.is_symlink():
        raise ModelError(f"{part}: is missing, or no folder")
    for folder, folders, files in os.walk(part):
        for name in (*folders, *files):
            mode = os.lstat(os.path.join(folder, name)).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise ModelError(f"{os.path.join(folder, name)}: is not a regular file")


def _described(path: Path) -> tuple[tuple[int, ...], str]:
    """Shape and type of an array."""
    raw = read_object(path / ".zarray")
    try:
        shape, name = tuple(int(length) for length in raw["shape"]), str(raw["dtype"])
        known = np.dtype(name).name if name.startswith(("<", "|")) else name
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path / '.zarray'}: is corrupt: {shortened(str(error))}") from error
    return shape, known


def _form(shape: tuple[int, ...], dtype: str) -> str:
    return f"{shortened(dtype)} {list(shape[:9])}"
