"""Files of a model folder, which somebody else has made: regular files inside it, of bounded size."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelError

MAX_BYTES = 512 * 2**20
"""Most bytes of a file that is read whole; the largest tokenizers have a tenth of it."""
MAX_TEMPLATE_BYTES = 4 * 2**20
UNFINISHED = "unfinished_conversion.jsonl"
"""The file of a folder that `jaxinfer convert` has not finished."""
_BLOB = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")  # a file's hash by git, or its SHA-256


def is_there(file: Path) -> bool:
    """True where a folder has an entry of this name, whatever it is: what is no file is an error when it is read."""
    return os.path.lexists(file)


def check_file(file: Path) -> int:
    """The size of a regular file inside its folder. Raises ModelError, naming it.

    A symbolic link may lead elsewhere in the folder, or, in the hub's cache, to the blobs that snapshots share: also
    where `blobs` is a link of this user's to another disk.
    """
    try:
        found = file.stat()
        target, folder = file.resolve(strict=True), file.parent.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(found.st_mode):
        raise ModelError(f"{file}: is not a regular file")
    if not target.is_relative_to(folder) and not _is_blob(target, folder):
        raise ModelError(f"{file}: is a symbolic link out of the folder, to {target}; put the file itself there")
    return found.st_size


def read_bytes(file: Path, *, most: int = MAX_BYTES) -> bytes:
    """A whole file. Raises ModelError, naming it."""
    size = check_file(file)
    if size > most:
        raise ModelError(f"{file}: has {size} bytes; at most {most} are read")
    try:
        # What has become a FIFO since must not hold us up.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            return stream.read(most)
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from None


def read_text(file: Path, *, most: int = MAX_BYTES) -> str:
    """A whole file of UTF-8. Raises ModelError, naming it."""
    try:
        return read_bytes(file, most=most).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ModelError(f"{file}: is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}") from None


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelError, naming it."""
    try:
        value = json.loads(read_text(file).removeprefix("\ufeff"))
    except RecursionError:
        raise ModelError(f"{file}: is not JSON that can be read: it is nested too deeply") from None
    except ModelError:
        raise
    except ValueError as error:
        raise ModelError(f"{file}: is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{file}: must hold a JSON object, not {type(value).__name__}")
    return value


def _is_blob(target: Path, folder: Path) -> bool:
    """Return whether a file without links is one of the blobs that a folder of the hub's cache, `snapshots/REVISION`,
    shares.

    If `blobs` is a link, this user or root must have made it, and the file's name must be a blob's. Owning a link is
    not enough: whoever unpacks an archive owns its links, and one could lead to the user's secrets.
    """
    blobs = folder.parent.parent / "blobs"
    if folder.parent.name != "snapshots" or not is_there(blobs):
        return False
    if not blobs.is_symlink():
        return target.is_relative_to(blobs)
    mine = blobs.lstat().st_uid in (0, os.geteuid())
    return mine and target.parent == blobs.resolve() and bool(_BLOB.fullmatch(target.name))
