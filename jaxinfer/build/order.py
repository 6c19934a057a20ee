"""Stages of an engine's start, in their order. Imports jax, whose environment must be prepared before."""

import logging

from jaxinfer.build.asked import StartRequest
from jaxinfer.build.chosen import choose
from jaxinfer.build.compiled import CompiledEngine, compile_programs
from jaxinfer.build.declared import declare
from jaxinfer.build.described import sizes_of
from jaxinfer.build.fitted import Fitted, fit
from jaxinfer.build.loaded import load
from jaxinfer.build.placed import find_devices, place
from jaxinfer.build.progress import Laps

log = logging.getLogger(__name__)


def start(asked: StartRequest, laps: Laps) -> CompiledEngine:
    """Declare, size, load, choose kernels, fit memory, compile. What cannot be is told before weights are read."""
    find_devices(asked)
    placed = place(asked, declare(asked.config))
    laps.end("plan")
    loaded = load(asked, placed)
    laps.end("load")
    fitted = fit(asked, choose(asked, loaded))
    laps.end("fit")
    _tell_sizes(asked, fitted)
    compiled = compile_programs(asked, fitted)
    laps.end("warm_up")
    return compiled


def _tell_sizes(asked: StartRequest, fitted: Fitted) -> None:
    sizes = sizes_of(fitted)
    log.info("%s", sizes)
    if asked.progress is not None:
        asked.progress.sized(sizes)
