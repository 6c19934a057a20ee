"""Safetensors folders: one file, or many with an index. No jax."""

import json
import math
import struct
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from jaxinfer.checkpoint.sources import Index
from jaxinfer.errors import ModelError
from jaxinfer.folder_files import check_file, is_there, read_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_READABLE = {"F32": 4, "F16": 2, "BF16": 2}
_MAX_HEADER = 100 * 2**20


class TensorInfo(NamedTuple):
    """A tensor as its file declares it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


class Checkpoint:
    """The tensors of a folder, read in parts. A context manager: files stay open, mapped, inside it."""

    def __init__(self, folder: Path):
        """Reads the headers. Raises ModelError that names the file, and the tensor where one is at fault."""
        self._tensors: dict[str, TensorInfo] = {}
        self._stack = ExitStack()
        self._open: dict[Path, Any] = {}
        for file, names in _files(folder).items():
            found = _read_header(file)
            for name in names if names is not None else found:
                if name not in found:
                    raise ModelError(f"{file}: tensor {name} is missing, though {folder / INDEX} says it is there")
                self._tensors[name] = found[name]
            if names is not None and (extra := found.keys() - set(names)):
                raise ModelError(f"{file}: tensor {min(extra)} is not listed in {folder / INDEX}")
        self._folder = folder

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.clear()
        self._stack.close()

    @property
    def names(self) -> Iterable[str]:
        """Names of all tensors."""
        return self._tensors.keys()

    def check_tensor(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises ModelError where a tensor is missing, or of another shape, or of a type that cannot be read."""
        info = self._tensors.get(name)
        if info is None:
            raise ModelError(f"{self._folder}: tensor {name} is missing")
        if info.shape != shape:
            found, wanted = list(info.shape), list(shape)
            raise ModelError(f"{info.file}: tensor {name} has shape {found}; config.json asks for {wanted}")
        if info.dtype not in _READABLE:
            raise ModelError(f"{info.file}: tensor {name} is {info.dtype}; F32, F16 and BF16 can be read")

    def check(self, shapes: Mapping[str, tuple[int, ...]], ignored: frozenset[str] | None = None) -> None:
        """Raises ModelError where a tensor of `shapes` is missing or of another shape or type, or where one is
        neither in `shapes` nor in `ignored`."""
        for name, shape in shapes.items():
            self.check_tensor(name, shape)
        extra = self._tensors.keys() - shapes.keys() - (ignored or frozenset())
        extra = sorted(name for name in extra if not name.endswith("rotary_emb.inv_freq"))
        if extra:
            more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
            file = self._tensors[extra[0]].file
            raise ModelError(f"{file}: tensor {extra[0]}{more} has no place in the model that config.json declares")

    def size(self, names: Iterable[str]) -> int:
        """Bytes of these tensors in the files."""
        infos = [self._tensors[name] for name in names]
        return sum(math.prod(info.shape) * _READABLE[info.dtype] for info in infos)

    def read(self, name: str, index: Index) -> np.ndarray:
        """The part `index` of a tensor, in the file's type (bfloat16 as ml_dtypes')."""
        file = self._tensors[name].file
        if file not in self._open:
            from safetensors import SafetensorError, safe_open

            try:
                self._open[file] = self._stack.enter_context(safe_open(file, framework="numpy"))
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{file}: cannot be read: {error}") from error
        return np.asarray(self._open[file].get_slice(name)[index])


def _files(folder: Path) -> dict[Path, list[str] | None]:
    """Each file with the tensors that the index places in it, or None where there is no index."""
    if is_there(folder / INDEX):
        return _read_index(folder)
    if is_there(folder / SINGLE):
        return {folder / SINGLE: None}
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(others) == 1:
        return {folder / others[0]: None}
    hint = f"; it has {', '.join(others)}" if others else "; only safetensors files are read"
    raise ModelError(f"{folder}: has neither {SINGLE} nor {INDEX}{hint}")


def _read_index(folder: Path) -> dict[Path, list[str] | None]:
    path = folder / INDEX
    try:
        weight_map = read_object(path)["weight_map"]
        pairs = [(str(name), str(file)) for name, file in weight_map.items()]
    except ModelError:
        raise
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: is not an index with a weight_map: {error!r}") from error
    files: dict[Path, list[str] | None] = {}
    for name, file in pairs:
        if Path(file).name != file:
            raise ModelError(f"{path}: weight_map: {name}: {file!r} is not the name of a file in the folder")
        names = files.setdefault(folder / file, [])
        assert names is not None
        names.append(name)
    return files


def _read_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors of one file; each must lie inside it."""
    try:
        size = check_file(file)
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(size - 8, _MAX_HEADER):
                raise ModelError(f"{file}: is truncated or corrupt: its header of {length} bytes does not fit")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        infos = {name: _tensor(file, name, entry, size - 8 - length) for name, entry in header.items()}
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from error
    except ModelError:
        raise
    except (ValueError, TypeError, struct.error, AttributeError, RecursionError) as error:
        raise ModelError(f"{file}: is truncated or corrupt: {error}") from error
    return infos


def _tensor(file: Path, name: str, entry: Any, data: int) -> TensorInfo:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(length) for length in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{file}: tensor {name}: its header entry is corrupt: {error!r}") from error
    if not 0 <= begin <= end <= data:
        missing = f"it ends at byte {end} of the data, the file holds {data}"
        raise ModelError(f"{file}: tensor {name} is truncated: {missing}")
    if dtype in _READABLE and end - begin != math.prod(shape) * _READABLE[dtype]:
        raise ModelError(f"{file}: tensor {name}: {end - begin} bytes do not hold {dtype} {list(shape)}")
    return TensorInfo(file, dtype, shape)
