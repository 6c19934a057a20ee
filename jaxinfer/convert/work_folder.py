"""WorkFolder: where a conversion works until it is whole. A killed run leaves it, and the next one goes on there."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from jaxinfer.errors import ModelError, ParameterError
from jaxinfer.folder_files import UNFINISHED, is_there
from jaxinfer.models.leaf_key import differences

_NEW = f"{UNFINISHED}.new"
_TOLD = 8


class WorkFolder:
    """The folder `OUT.partial`: parts, which are files or folders, and a journal of those that are whole.

    The journal is the file UNFINISHED, and no folder that has it is loaded. It goes last, when the folder has its name
    already. A context manager, which holds the folder against other runs. asked: what is converted, and into what; a
    run that is asked for something else does not go on.
    """

    def __init__(self, out: Path, asked: Mapping[str, Any]):
        self.out = out if out.name else out.resolve()  # the current folder has no name
        self.path = self.out.parent / f"{self.out.name}.partial"
        self._asked = json.loads(json.dumps(asked))
        self._whole: dict[str, str] = {}
        self._lock: int | None = None

    def __enter__(self) -> "WorkFolder":
        """Raises ParameterError where OUT is there, where its parent is not, or for the folder of another run."""
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self) -> None:
        folder = self._place()
        folder.mkdir(exist_ok=True)
        self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ParameterError("out", f"another run is converting into {folder}; let it end") from None
        if self._has_moved(folder):
            with suppress(OSError):
                self.path.rmdir()  # the empty one that this run has made
            raise ParameterError("out", f"another run has just made {self.out}")
        self._read_journal(folder)
        if folder == self.path:
            self._write_journal()
            self._sweep()

    def _place(self) -> Path:
        """Return the folder in which the conversion is, or will be."""
        if is_there(self.out) and not is_there(self.out / UNFINISHED):
            raise ParameterError("out", f"{self.out} exists; give a folder that does not")
        if not self.out.parent.is_dir():
            raise ParameterError("out", f"{self.out.parent} is no folder; give one in a folder that exists")
        if is_there(self.path) and not self.path.is_dir():
            raise ParameterError("out", f"{self.path} is no folder; a conversion works there: remove it")
        return self.out if is_there(self.out) else self.path

    def _has_moved(self, folder: Path) -> bool:
        """Return whether another run has ended between the search for the folder and its lock."""
        assert self._lock is not None
        if not (is_there(folder) and os.path.samestat(os.fstat(self._lock), os.stat(folder))):
            return True
        return is_there(self.out) if folder == self.path else not is_there(folder / UNFINISHED)

    @property
    def renamed(self) -> bool:
        """An earlier run has done everything but the final step."""
        return is_there(self.out)

    def add(self, name: str, write: Callable[[Path], None]) -> None:
        """Has `write` make a part, unless an earlier run has made it: one that differs from what it was is made anew.

        Raises OSError.
        """
        path = self.path / name
        if name in self._whole:
            if is_there(path) and _digest(path) == self._whole[name]:
                return
            _remove(path)
        path.parent.mkdir(exist_ok=True)
        write(path)
        _sync(path)
        self._whole[name] = _digest(path)
        with (self.path / UNFINISHED).open("a") as journal:
            journal.write(_line([name, self._whole[name]]))
            journal.flush()
            os.fsync(journal.fileno())

    def finish(self) -> None:
        """Gives the folder its name, and then lets it be loaded."""
        if not self.renamed:
            _sync_folder(self.path)
            os.rename(self.path, self.out)
            _sync_folder(self.out.parent)
        (self.out / UNFINISHED).unlink()
        _sync_folder(self.out)

    def _read_journal(self, folder: Path) -> None:
        if not is_there(folder / UNFINISHED):
            if others := [entry.name for entry in folder.iterdir() if entry.name != _NEW]:
                raise ParameterError("out", f"{folder} has {min(others)} and is of no conversion; remove it")
            return
        lines = list(_lines((folder / UNFINISHED).read_text(errors="replace")))
        asked = lines[0] if lines else {}
        if found := list(differences(asked, self._asked)):
            more = f", and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
            told = "; ".join(found[:_TOLD]) + more
            raise ParameterError("out", f"{folder} is of another run: {told}; remove it, or repeat that run")
        self._whole = dict(lines[1:])

    def _write_journal(self) -> None:
        """Anew: the last line of a killed run may not be whole."""
        new = self.path / _NEW
        with new.open("w") as journal:
            journal.writelines(map(_line, [self._asked, *map(list, self._whole.items())]))
            journal.flush()
            os.fsync(journal.fileno())
        os.rename(new, self.path / UNFINISHED)

    def _sweep(self) -> None:
        """Removes what a killed run was about to make."""
        kept = {self.path / name for name in (*self._whole, UNFINISHED)}
        above = {parent for path in kept for parent in path.parents}
        for entry in [*self.path.glob("*"), *self.path.glob("*/*")]:
            if entry not in kept and entry not in above and entry.parent not in kept and is_there(entry):
                _remove(entry)


def _line(value: Any) -> str:
    return json.dumps(value) + "\n"


def _lines(text: str) -> Iterator[Any]:
    """Whole ones; what comes after one that is not does not count."""
    for line in text.splitlines(keepends=True):
        try:
            value = json.loads(line)
        except ValueError:
            return
        if line.endswith("\n"):
            yield value


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def _digest(path: Path) -> str:
    """SHA-256 over the names and contents of a part."""
    found = hashlib.sha256()
    for file in _files(path):
        with file.open("rb") as stream:
            found.update(f"{file.relative_to(path)} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return found.hexdigest()


def _sync(path: Path) -> None:
    """Waits until a part, and the entry of its folder, are on the disk."""
    for file in _files(path):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    for folder in [*(inner for inner in path.rglob("*") if inner.is_dir()), *([path] if path.is_dir() else [])]:
        _sync_folder(folder)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_room(work: WorkFolder, needed: int) -> None:
    """Raises ModelError where a conversion will not fit on its disk."""
    there = sum(file.stat().st_size for file in _files(work.path)) if work.path.is_dir() else 0
    free = shutil.disk_usage(work.out.parent).free
    if needed - there > free:
        raise ModelError(f"{work.out}: takes about {needed - there:,} bytes more; {free:,} are free on its disk")
