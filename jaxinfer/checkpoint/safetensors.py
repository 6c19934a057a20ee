"""Safetensors folders: one file, or many with an index. No jax.

The safetensors package judges each file's layout. Bytes are read here: its own reading holds the interpreter's lock for
as long as a tensor takes, and copies at a quarter of the speed.
"""

import json
import logging
import math
import struct
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from jaxinfer.checkpoint.sources import FLOATS, Index, Source, Tensor, TensorFault
from jaxinfer.errors import ModelError, quoted, shortened
from jaxinfer.folder_files import check_file, is_there, read_object

log = logging.getLogger(__name__)

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

TYPES = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
"""Supported types of tensors, by their names in files."""
_MAX_HEADER = 100 * 2**20
_MAX_AXES = 8
_READ_AT_ONCE = 8 * 2**20  # bytes; a signal waits for the end of a read


class TensorInfo(NamedTuple):
    """A tensor as its file declares it. begin, end: of its bytes in the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Unused(NamedTuple):
    """Tensors that a checkpoint may hold though nothing reads them: beginnings and endings of their names. zeros:
    endings of those that may be there if they hold zeros alone."""

    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()


class Checkpoint:
    """The tensors of a folder, read in parts. A context manager: files stay open inside it."""

    def __init__(self, folder: Path):
        """Reads the headers. Raises ModelError that names the file, and the tensor where one is at fault."""
        self._tensors: dict[str, TensorInfo] = {}
        self._stack = ExitStack()
        self._open: dict[Path, FileIO] = {}
        for file, names in _files(folder).items():
            found = _read_header(file)
            for name in names if names is not None else found:
                if name not in found:
                    missing = f"tensor {shortened(name)} is missing"
                    raise ModelError(f"{file}: {missing}, though {folder / INDEX} says it is there")
                self._tensors[name] = found[name]
            if names is not None and (extra := found.keys() - set(names)):
                raise ModelError(f"{file}: tensor {shortened(min(extra))} is not listed in {folder / INDEX}")
        self._folder = folder

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.clear()
        self._stack.close()

    @property
    def names(self) -> Collection[str]:
        """Names of all tensors."""
        return self._tensors.keys()

    def info(self, name: str) -> TensorInfo:
        """A tensor as its file declares it."""
        return self._tensors[name]

    def float_type(self, name: str) -> np.dtype | None:
        """The type of a tensor of plain values; None where there is none of this name."""
        info = self._tensors.get(name)
        return TYPES[info.dtype] if info is not None and info.dtype in FLOATS else None

    def beginning(self, begins: tuple[str, ...]) -> list[str]:
        """Names of tensors that can be read and begin so."""
        return [name for name, info in self._tensors.items() if name.startswith(begins) and info.dtype in TYPES]

    def check_tensor(self, tensor: Tensor) -> None:
        """Raises ModelError where a tensor is missing, or of another shape, or of a type that cannot be read."""
        name, info = tensor.name, self._tensors.get(tensor.name)
        if info is None:
            raise ModelError(f"{self._folder}: tensor {name} is missing")
        if info.shape not in (tensor.shape, *tensor.others):
            found, wanted = list(info.shape), list(tensor.shape)
            raise ModelError(f"{info.file}: tensor {name} has shape {found}; config.json asks for {wanted}")
        if info.dtype not in tensor.dtypes:
            raise ModelError(
                f"{info.file}: tensor {name} is {shortened(info.dtype)}; {_listed(tensor.dtypes)} can be read"
            )

    def check(self, tensors: Collection[Tensor], unused: Unused) -> None:
        """Raises ModelError where one of `tensors` is missing or of another shape or type, or where the checkpoint has
        one more that is not `unused`: those are left out, with a line in the log."""
        for tensor in tensors:
            self.check_tensor(tensor)
        known = {tensor.name for tensor in tensors}
        others = [name for name in self._tensors.keys() - known if not name.endswith("rotary_emb.inv_freq")]
        extra = sorted(name for name in others if not self._is_unused(name, unused))
        if skipped := sorted(set(others) - set(extra)):
            log.info("%s: %d tensors have no use here and are left out: %s, …", self._folder, len(skipped), skipped[0])
        if extra:
            more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
            file, name = self._tensors[extra[0]].file, shortened(extra[0])
            raise ModelError(f"{file}: tensor {name}{more} has no place in the model that config.json declares")

    def _is_unused(self, name: str, unused: Unused) -> bool:
        if name.startswith(unused.begins) or name.endswith(unused.ends):
            return True
        return name.endswith(unused.zeros) and self._tensors[name].dtype in FLOATS and not self.read(name, ()).any()

    def error(self, name: str, message: str) -> ModelError:
        """An error that names a tensor and its file."""
        return ModelError(f"{self._tensors[name].file}: tensor {shortened(name)} {message}")

    def size(self, names: Iterable[str]) -> int:
        """Bytes of these tensors in the files."""
        infos = [self._tensors[name] for name in names]
        return sum(info.end - info.begin for info in infos)

    def read_source(self, source: Source, index: Index) -> np.ndarray:
        """The part `index` of a source. Raises ModelError as `read`, and for values that cannot be used."""
        try:
            return source.read(index, self.read)
        except TensorFault as fault:
            raise self.error(fault.tensor, str(fault)) from None

    def read(self, name: str, index: Index) -> np.ndarray:
        """The part `index` of a tensor, in the file's type (bfloat16 as ml_dtypes').

        index: slices of step 1 of its first axes; the others are whole, as all are where it is empty. Other threads run
        while the disk is slow: the interpreter's lock is free. Raises ModelError where the file cannot be read, or has
        become shorter.
        """
        info = self._tensors[name]
        try:
            return _read_part(self._file(info.file), info, index)
        except EOFError:
            raise ModelError(f"{info.file}: tensor {name} is truncated: the file has become shorter") from None
        except OSError as error:
            raise ModelError(f"{info.file}: cannot be read: {error.strerror}") from error

    def _file(self, file: Path) -> FileIO:
        if file not in self._open:
            self._open[file] = self._stack.enter_context(FileIO(file))
        return self._open[file]


def _read_part(file: FileIO, info: TensorInfo, index: Index) -> np.ndarray:
    """Read a part of a tensor. To read some of its columns, whole rows are read, a few at a time, and cut."""
    if not index:
        return _read_whole(file, info)
    columns = index[1:]
    first, last, _ = index[0].indices(info.shape[0])
    if all(one.indices(length) == (0, length, 1) for one, length in zip(columns, info.shape[1:], strict=False)):
        return _read_rows(file, info, first, last)
    shape = np.broadcast_to(0, info.shape)[first:last, *columns].shape
    part = np.empty(shape, TYPES[info.dtype])
    count = max(1, _READ_AT_ONCE * info.shape[0] // max(1, info.end - info.begin))
    for start in range(first, last, count):
        stop = min(start + count, last)
        part[start - first : stop - first] = _read_rows(file, info, start, stop)[:, *columns]
    return part


def _read_whole(file: FileIO, info: TensorInfo) -> np.ndarray:
    """Read a whole tensor of any number of axes."""
    flat = info._replace(shape=(1, *info.shape))
    return _read_rows(file, flat, 0, 1)[0]


def _read_rows(file: FileIO, info: TensorInfo, first: int, last: int) -> np.ndarray:
    dtype = TYPES[info.dtype]
    shape = (max(0, last - first), *info.shape[1:])
    content = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
    file.seek(info.begin + first * math.prod(shape[1:]) * dtype.itemsize)
    left = content.data
    while left:
        read = file.readinto(left[:_READ_AT_ONCE])
        if not read:
            raise EOFError
        left = left[read:]
    return content.view(dtype).reshape(shape)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _files(folder: Path) -> dict[Path, list[str] | None]:
    """Each file with the tensors that the index places in it, or None where there is no index."""
    if is_there(folder / INDEX):
        return _read_index(folder)
    if is_there(folder / SINGLE):
        return {folder / SINGLE: None}
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(others) == 1:
        return {folder / others[0]: None}
    hint = f"; it has {shortened(', '.join(others))}" if others else "; only safetensors files are read"
    raise ModelError(f"{folder}: has neither {SINGLE} nor {INDEX}{hint}")


def _read_index(folder: Path) -> dict[Path, list[str] | None]:
    path = folder / INDEX
    try:
        weight_map = read_object(path)["weight_map"]
        pairs = [(str(name), str(file)) for name, file in weight_map.items()]
    except ModelError:
        raise
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: is not an index with a weight_map: {quoted(error)}") from error
    files: dict[Path, list[str] | None] = {}
    for name, file in pairs:
        if Path(file).name != file:
            raise ModelError(
                f"{path}: weight_map: {shortened(name)}: {quoted(file)} is not the name of a file in the folder"
            )
        names = files.setdefault(folder / file, [])
        assert names is not None
        names.append(name)
    return files


def _read_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors of one file."""
    try:
        size = check_file(file)
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(size - 8, _MAX_HEADER):
                raise ModelError(f"{file}: is truncated or corrupt: its header of {length} bytes does not fit")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        infos = {name: _tensor(file, name, entry, 8 + length, size) for name, entry in header.items()}
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from error
    except ModelError:
        raise
    except (ValueError, TypeError, struct.error, AttributeError, RecursionError) as error:
        raise ModelError(f"{file}: is truncated or corrupt: {shortened(str(error))}") from error
    _check_layout(file)
    return infos


def _check_layout(file: Path) -> None:
    """Tensors neither overlap nor leave bytes between or after them, as the format demands."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"):
            return
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file}: is corrupt: {shortened(str(error))}") from error


def _tensor(file: Path, name: str, entry: Any, begin: int, size: int) -> TensorInfo:
    """One that lies in the file's data, from byte `begin` to `size`."""
    where, data = f"{file}: tensor {shortened(name)}", size - begin
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(length) for length in entry["shape"][: _MAX_AXES + 1])
        first, last = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{where}: its header entry is corrupt: {quoted(error)}") from error
    if not 0 <= first <= last <= data:
        missing = f"it ends at byte {quoted(last)} of the data, the file holds {data}"
        raise ModelError(f"{where} is truncated: {missing}")
    # Before lengths are multiplied: thousands of them take minutes.
    if len(shape) > _MAX_AXES or not all(0 <= length <= data for length in shape):
        raise ModelError(f"{where}: shape {quoted(entry['shape'])}: at most {_MAX_AXES} axes of 0 to {data} are read")
    if dtype in TYPES and last - first != math.prod(shape) * TYPES[dtype].itemsize:
        raise ModelError(f"{where}: {last - first} bytes do not hold {dtype} {list(shape)}")
    return TensorInfo(file, dtype, shape, begin + first, begin + last)
