"""Counts that several processes map."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.errors import JaxinferError
from jaxinfer.metrics.counts import SharedCounts
from tests.material import REPOSITORY

CHILD = """
import sys
from jaxinfer.metrics.counts import SharedCounts
counts = SharedCounts(int(sys.argv[1]), 3, 1000, 2)
counts.own[999] += 5
"""


def refuse(*arguments: Any) -> int:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.fixture(params=["as it is", "refused", "absent"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What memfd_create does: the kernel or a container may refuse it, and macOS has none."""
    if request.param == "refused":
        monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    elif request.param == "absent":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    return request.param


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("memory")
def test_a_child_counts_in_the_same_memory(temporary: Path) -> None:
    counts = SharedCounts.create(3, 1000)
    assert counts.total().tolist() == [0] * 1000
    counts.own[999] += 2
    counts.restarts[0] += 1
    command = [sys.executable, "-c", CHILD, str(counts.descriptor)]
    subprocess.run(command, pass_fds=[counts.descriptor], cwd=REPOSITORY, check=True)
    assert counts.total()[999] == 7
    assert counts.total().sum() == 7
    assert list(counts.restarts) == [1, 0]
    assert list(temporary.iterdir()) == []


def test_every_byte_has_its_place(memory: str, temporary: Path) -> None:
    """A hole would end whoever writes to it once the disk is full."""
    found = os.fstat(SharedCounts.create(3, 1000).descriptor)
    assert found.st_size == 8 * (2 + 3 * 1000)
    assert found.st_blocks * 512 >= found.st_size


def test_where_there_is_no_memory_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no file is taken in its stead: it was memory that was lacking."""

    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if not hasattr(os, "memfd_create"):
        pytest.skip("needs memfd_create")
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(JaxinferError, match="No space left on device"):
        SharedCounts.create(3, 1000)


def test_an_absent_temporary_folder_is_told(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "absent"))
    with pytest.raises(JaxinferError, match="No such file or directory"):
        SharedCounts.create(3, 1000)
