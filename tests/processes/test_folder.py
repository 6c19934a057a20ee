"""Nothing of a server remains in the temporary folder, however it ends."""

import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from jaxinfer.errors import JaxinferError
from jaxinfer.processes.folder import remove_abandoned, server_folder
from tests.cli.command_line import ENVIRONMENT
from tests.processes.serving import Serving, serving
from tests.text.folders import byte_level_folder


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty temporary folder for servers, and for this process."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model")


def processes_of(server: Serving) -> list[psutil.Process]:
    supervisor = psutil.Process(server.process.pid)
    return [supervisor, *supervisor.children(recursive=True)]


def kill_at_once(processes: list[psutil.Process]) -> None:
    """So that none has time to do something about another's end."""
    for process in processes:
        process.suspend()
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, 10)


@pytest.mark.long
async def test_nothing_remains_of_one_that_ends(folder: Path, temporary: Path) -> None:
    async with serving(folder):
        assert len(list(temporary.iterdir())) == 1
    assert list(temporary.iterdir()) == []


async def test_nothing_remains_where_the_supervisor_is_killed(folder: Path, temporary: Path) -> None:
    async with serving(folder, "--api-workers", "2") as server:
        children = processes_of(server)[1:]
        server.process.kill()
        assert psutil.wait_procs(children, 20)[1] == []
    assert list(temporary.iterdir()) == []


@pytest.mark.long
async def test_what_remains_where_all_are_killed_goes_with_the_next_start(folder: Path, temporary: Path) -> None:
    async with serving(folder) as running, serving(folder) as killed:
        kill_at_once(processes_of(killed))
        assert len(list(temporary.iterdir())) == 2
        async with serving(folder) as other:
            assert len(list(temporary.iterdir())) == 2  # its own, and that of the one that runs
            assert await running.status("/readyz") == await other.status("/readyz") == 200
            running.child("engine").kill()
            await running.until("/readyz", 503)
            await running.until("/readyz", 200)
    assert list(temporary.iterdir()) == []


def test_only_what_is_ours_is_removed(temporary: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "lock").touch()
    (temporary / "jaxinfer-link").symlink_to(outside)
    (temporary / "jaxinfer-file").touch()
    (temporary / "jaxinfer-other").mkdir()
    (temporary / "jaxinfer-other" / "no lock").touch()
    (temporary / "jaxinfer-pointing").mkdir()
    (temporary / "jaxinfer-pointing" / "lock").symlink_to(outside / "lock")
    (temporary / "jaxinfer-gone").mkdir()
    (temporary / "jaxinfer-gone" / "lock").touch()
    with server_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        remove_abandoned()
        left = {entry.name for entry in temporary.iterdir()}
        assert left == {"jaxinfer-link", "jaxinfer-file", "jaxinfer-other", "jaxinfer-pointing", folder.name}
        assert (outside / "lock").exists()
    assert not folder.exists()


def test_a_new_folder_that_another_start_takes_for_an_abandoned_one_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making a folder's lock and taking it."""
    opened, meddling = os.open, [True]

    def meddle(path: Path, flags: int, *mode: int) -> int:
        descriptor = opened(path, flags, *mode)
        if flags & os.O_CREAT and meddling:
            meddling.clear()
            remove_abandoned()
        return descriptor

    monkeypatch.setattr(os, "open", meddle)
    with server_folder() as folder:
        assert (folder / "lock").exists()
        assert [entry.name for entry in temporary.iterdir()] == [folder.name]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EINTR])
def test_where_there_are_no_locks_it_is_told_and_nothing_remains(
    temporary: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on some network file systems."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    before = os.listdir("/dev/fd")
    with pytest.raises(JaxinferError, match=rf"{os.strerror(number)}; \$TMPDIR names another"), server_folder():
        pass
    assert list(temporary.iterdir()) == []
    assert os.listdir("/dev/fd") == before


def test_where_the_lock_cannot_be_made_nothing_remains(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: Path | str, flags: int, *mode: int, **options: Any) -> int:
        if Path(path).name == "lock":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(JaxinferError, match="No space left"), server_folder():
        pass
    assert list(temporary.iterdir()) == []


def test_one_that_cannot_be_made_is_told(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "absent"))
    with pytest.raises(JaxinferError, match=r"TMPDIR"), server_folder():
        pass
