"""What a compiler has freed goes back to the system."""

import subprocess
import sys

import pytest

from jaxinfer import heap
from tests.processes import free_memory


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_free_memory_is_given_back() -> None:
    subprocess.run([sys.executable, "-m", free_memory.__name__], check=True, timeout=60)


def test_where_the_library_cannot_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: object())
    heap.release()
