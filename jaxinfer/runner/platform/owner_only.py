"""Files and folders of this user alone, and those that nobody but this user and root can change."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

_MOST_LINKS = 40
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


class NotPrivateError(OSError):
    """Others could have made a file or folder, or can change it."""


def make_folder(folder: Path) -> None:
    """Makes a folder that only this user can enter; its parent must exist. Raises OSError, also for one of others."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _check(folder, folder.lstat(), stat.S_ISDIR, "folder")


def read_file(file: Path) -> bytes:
    """Read a file. Raises OSError, also for a file that does not belong to this user alone."""
    # A pipe that somebody put there would block.
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        _check(file, os.fstat(descriptor), stat.S_ISREG, "file")
        return stream.read()


def read_trusted(file: Path) -> bytes:
    """Read a file that nobody but this user and root can change or put in the place of another, behind links or not.

    Raises OSError.
    """
    place = file.absolute()
    for _ in range(_MOST_LINKS):
        place = place.parent.resolve(strict=True) / place.name
        refuse_open(place.parent)
        if not place.is_symlink():
            break
        place = place.parent / place.readlink()
    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotPrivateError(0, "it must be a file", str(place))
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & _WRITABLE:
            raise NotPrivateError(0, _changed_by_others(found), str(place))
        return stream.read()


def refuse_open(folder: Path) -> None:
    """Raise NotPrivateError, which names the place, if anybody but this user and root can put another folder in the
    place of this one or of one above it. folder: without links."""
    for place in (folder, *folder.parents):
        if _lets_others_in(found := place.stat()):
            raise NotPrivateError(0, _changed_by_others(found), str(place))


def refuse_writable(folder: Path) -> None:
    """Raise NotPrivateError as `refuse_open`, and if anybody else can put a file into the folder."""
    refuse_open(folder)
    if (found := folder.stat()).st_mode & _WRITABLE:
        raise NotPrivateError(0, _changed_by_others(found), str(folder))


def _changed_by_others(found: os.stat_result) -> str:
    return f"others can change it (user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}): chown or chmod go-w"


def write_file(file: Path, content: bytes, mode: int = 0o600) -> None:
    """Puts a file there, whole or not at all. Raises OSError."""
    descriptor, own = tempfile.mkstemp(dir=file.parent, prefix=".")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            os.fchmod(descriptor, mode)
        os.replace(own, file)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(own)
        raise


def write_once(file: Path, content: bytes) -> None:
    """Puts a file there for good; of several that try at once, one does. Raises OSError."""
    descriptor, own = tempfile.mkstemp(dir=file.parent, prefix=".")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        _link(own, file)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(own)


def _link(own: str, file: Path) -> None:
    try:
        os.link(own, file)
    except FileExistsError:
        pass
    except OSError:  # a file system without links: the last one stays, and who was before makes programs once more
        os.replace(own, file)


def others_can_replace(folder: Path) -> bool:
    """True where another user could put another folder in the place of this one, or of one above it.

    A path with links has places that are not looked at: True, too.
    """
    return folder != folder.resolve() or any(_lets_others_in(place.stat()) for place in (folder, *folder.parents))


def _lets_others_in(found: os.stat_result) -> bool:
    mine = found.st_uid in (0, os.geteuid())
    shared = found.st_mode & _WRITABLE
    return not mine or bool(shared and not found.st_mode & stat.S_ISVTX)


def _check(path: Path, found: os.stat_result, is_kind: Callable[[int], bool], kind: str) -> None:
    if not is_kind(found.st_mode):
        raise NotPrivateError(0, f"it must be a {kind} and no link", str(path))
    if found.st_uid != os.geteuid():
        raise NotPrivateError(0, f"it belongs to user {found.st_uid}, not to {os.geteuid()}", str(path))
    if found.st_mode & 0o077:
        raise NotPrivateError(0, f"others may use it (mode {stat.S_IMODE(found.st_mode):o})", str(path))
