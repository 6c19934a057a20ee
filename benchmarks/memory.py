"""Memory of processes that a benchmark started, in MiB."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

_POLL_SECONDS = 0.02
_MIB = 2**20


def shared_out(process: int) -> float:
    """MiB that the process of this id and those that it started hold; what several share counts once (Linux's PSS)."""
    root = psutil.Process(process)
    return sum(_bytes(each, "pss") for each in (root, *root.children(recursive=True))) / _MIB


@contextmanager
def sampled() -> Iterator[dict[str, float]]:
    """MiB that processes started inside hold, at most: `all_mib` together, and `largest_mib` of one.

    What several share counts for each of them.
    """
    found, ended = {"all_mib": 0.0, "largest_mib": 0.0}, threading.Event()

    def sample() -> None:
        while not ended.wait(_POLL_SECONDS):
            sizes = [size for child in psutil.Process().children(recursive=True) if (size := _bytes(child, "rss"))]
            found["all_mib"] = max(found["all_mib"], sum(sizes) // _MIB)
            found["largest_mib"] = max(found["largest_mib"], max(sizes, default=0) // _MIB)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def _bytes(process: psutil.Process, kind: str) -> int:
    """Bytes of a kind ("rss", "pss"); 0 where the process has ended."""
    try:
        return getattr(process.memory_full_info() if kind == "pss" else process.memory_info(), kind)
    except psutil.Error:
        return 0
