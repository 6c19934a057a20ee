"""Memory mappings of this process: XLA on a CPU takes three for every kernel that it compiles by itself, and ends the
process by a segmentation fault where Linux gives it no more."""

from pathlib import Path

from jaxinfer.errors import JaxinferError

_MAPPINGS = Path("/proc/self/maps")
_LIMIT = Path("/proc/sys/vm/max_map_count")
_SHARE = 0.95
"""Largest share of the mappings that Linux allows: threads, buffers and the next program need some, too."""


def mappings() -> int:
    """Count the memory mappings of this process; 0 if the system does not tell."""
    try:
        return _MAPPINGS.read_bytes().count(b"\n")
    except OSError:
        return 0


def check_mappings() -> None:
    """Raises JaxinferError where hardly any is left."""
    held = mappings()
    limit = _limit()
    if limit is not None and held > _SHARE * limit:
        raise JaxinferError(
            f"the engine's programs take {held:,} of the {limit:,} memory mappings that this system allows a process: "
            f"allow more (`sysctl -w vm.max_map_count={8 * limit}`), or fewer programs (a smaller `max_num_seqs` or "
            "`max_num_batched_tokens`, no drafts)"
        )


def _limit() -> int | None:
    try:
        return int(_LIMIT.read_text())
    except (OSError, ValueError):
        return None
