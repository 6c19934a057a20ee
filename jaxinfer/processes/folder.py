"""server_folder: where the processes of one server meet, in the temporary folder. Nothing of it remains.

It goes when the server ends. Where the supervisor is killed, its children remove it; where they are killed at the same
time, the next server of this user that starts does, which knows by a lock that its owner is gone.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jaxinfer.errors import JaxinferError

_PREFIX = "jaxinfer-"
_LOCK = "lock"


@contextlib.contextmanager
def server_folder() -> Iterator[Path]:
    """A new folder that only this user can enter. Raises JaxinferError where none can be made."""
    remove_abandoned()
    folder, lock = _make()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_abandoned() -> None:
    """Removes folders of this user's servers that are gone."""
    with contextlib.suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                _remove_abandoned(folder)


def _remove_abandoned(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _make() -> tuple[Path, int]:
    """A folder, and its lock, which its owner holds."""
    while True:
        try:
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            lock = _locked(folder)
        except OSError as error:
            message = f"cannot make a folder for the server's sockets in {tempfile.gettempdir()}: {error.strerror}"
            raise JaxinferError(f"{message}; $TMPDIR names another") from None
        if lock is not None:
            return folder, lock


def _locked(folder: Path) -> int | None:
    """The lock of a new folder; None where another server that starts took the folder for an abandoned one.

    Raises OSError, as where the file system has no locks. Nothing of the folder remains then.
    """
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        undo.callback(os.close, lock)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (folder / _LOCK).exists():
                undo.pop_all()
                return lock
    return None
