"""Processes that a process has started."""

import psutil


def children_with(word: str, pid: int | None = None, *, recursive: bool = False) -> list[psutil.Process]:
    """Children of this process, or of `pid`, with a word in their command line; those that have ended are left out,
    also where nobody has waited for them."""
    found = []
    for child in psutil.Process(pid).children(recursive):
        try:
            if any(word in part for part in child.cmdline()):
                found.append(child)
        except (psutil.ZombieProcess, psutil.NoSuchProcess):
            continue
    return found


def worker_pids() -> list[int]:
    """This process's children that read large bodies."""
    return [child.pid for child in children_with("jaxinfer.serving.workers.main")]
