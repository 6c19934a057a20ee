"""Kernels by others that are timed for comparison: their chains by name, and reasons for those left out."""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.kernel_bench.cases import AttentionCase
from benchmarks.kernel_bench.timing import Chain

Makers = dict[str, Callable[[], Chain]]


class Peers(NamedTuple):
    """left_out: for a peer, or for it with one model's kind of case, the reason."""

    makers: Makers
    left_out: dict[str, str]


def not_for(peer: str, case: AttentionCase, reason: str) -> Peers:
    """A peer that cannot do what the case asks for, of whatever size it is."""
    return Peers({}, {f"{peer}, {case.model.name} {case.kind}": reason})


def without(peer: str, reason: str) -> Peers:
    """A peer that cannot run here."""
    return Peers({}, {peer: reason})


def no_torch(platform: str) -> str | None:
    """Why torch cannot run on the device that JAX uses; None where it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if platform == "cpu" or (platform == "gpu" and torch.cuda.is_available()):
        return None
    return f"torch has no device here: JAX runs on {platform}"
