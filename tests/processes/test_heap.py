"""What a compiler has freed goes back to the system."""

import subprocess
import sys

import pytest

from jaxinfer import heap

PROGRAM = """
import psutil
from jaxinfer import heap

held = [bytearray(100_000) for _ in range(1000)]
last = bytearray(100_000)  # above them, so that they are not given back when they are freed
allocated, resident = heap.allocated(), psutil.Process().memory_info().rss
del held
assert allocated - heap.allocated() > 90_000_000
heap.release()
assert resident - psutil.Process().memory_info().rss > 80_000_000
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_free_memory_is_given_back() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)


def test_where_the_library_cannot_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: object())
    heap.release()
