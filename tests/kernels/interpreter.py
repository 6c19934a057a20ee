"""The TPU interpreter, strict: memory full of NaN, no read out of bounds, no race, and no semaphore left above 0."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal
from unittest.mock import patch

from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu


@contextmanager
def tpu_interpreter(copies: Literal["eager", "on_wait"] = "on_wait") -> Iterator[None]:
    """Pallas kernels for TPU run on the CPU here; fails where a race was seen, or a copy that nobody waited for.

    copies: when a copy is done: as soon as it is started, or not before somebody waits for it.
    """
    params = pltpu.InterpretParams(
        detect_races=True, uninitialized_memory="nan", out_of_bounds_reads="raise", dma_execution_mode=copies
    )
    interpret_pallas_call.reset_tpu_interpret_mode_state()
    told: list[str] = []
    # A semaphore above 0 at a kernel's end, which on a TPU would upset the next kernel, is only printed.
    with pltpu.force_tpu_interpret_mode(params), patch.object(interpret_pallas_call, "print", told.append, create=True):
        yield
    races = interpret_pallas_call.races
    assert races is not None, "no kernel was run"
    assert not races.races_found
    assert not told, told
