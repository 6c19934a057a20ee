"""File systems of a given size, to be filled."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(path: Path, size: str) -> Iterator[Path]:
    """A tmpfs at `path`, of a size as mount takes it. Skips the test where mounting is not allowed."""
    path.mkdir(parents=True)
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)]
    if os.geteuid() or subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(disk: Path) -> None:
    """Writes until no space is left."""
    done = subprocess.run(["dd", "if=/dev/zero", f"of={disk / 'fill'}", "bs=4096"], capture_output=True, check=False)
    assert b"No space left" in done.stderr
