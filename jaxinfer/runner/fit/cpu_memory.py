"""KV blocks on a CPU, whose memory belongs to others too: how many, and why."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.runner.fit.memory import fit_blocks, row_blocks

_USUAL_BLOCKS = 4096
_USUAL_SHARE = 8
_GRID = 64
"""`fit_blocks` leaves multiples of it as they are."""


class CPUBlocks(NamedTuple):
    """blocks: of every group. reason: what decided, for people."""

    blocks: list[int]
    reason: str


def cpu_blocks(costs: Sequence[int], shapes: EngineShapes, memory: int, weights: int) -> CPUBlocks:
    """4,096 in at most an eighth of the memory, or those of the longest sequence if they are more; all in at most half
    of what weights leave. Nothing follows from what is free now: programs are compiled for these numbers, and kept.

    costs: bytes of a block of every group, on all devices together, which share the memory. memory: bytes of the
    machine. weights: bytes on all devices.
    """
    usual = fit_blocks(memory // _USUAL_SHARE, costs, [_USUAL_BLOCKS] * len(costs))
    longest = [-(-(1 + blocks) // _GRID) * _GRID for blocks in row_blocks(shapes)]
    wanted = list(map(max, usual, longest))
    found = fit_blocks(max(memory - weights, 0) // 2, costs, wanted)
    if found != wanted:
        return CPUBlocks(found, "half of what weights leave")
    if found != usual:
        return CPUBlocks(found, f"a sequence of {shapes.max_model_len:,} tokens")
    return CPUBlocks(found, f"{_USUAL_BLOCKS:,} blocks" if max(found) == _USUAL_BLOCKS else "an eighth")


def machine_memory(root: Path = Path("/")) -> int:
    """Bytes of this machine; fewer where a control group (a container) allows less. root: of the file system."""
    return min([psutil.virtual_memory().total, *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """Yield the memory limits of this process's control groups, versions 1 and 2, and of all above them. A container
    sees its own group as the root and may still get its path outside; folders that do not exist are skipped."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
        own = top / path.lstrip("/")
        for folder in (own, *own.parents):
            limit = _text(folder / ("memory.limit_in_bytes" if controllers else "memory.max")).strip()
            if limit.isdigit():  # or `max`
                yield int(limit)
            if folder == top:
                break


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
