"""The TPU interpreter, strict: memory full of NaN, no read out of bounds, no race, and no semaphore left above 0.

On a machine with a TPU nothing is interpreted: the same tests run the kernels themselves.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal
from unittest.mock import patch

import jax
import jax.numpy as jnp
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu

_FLOATS = 1 << 24


def on_tpu() -> bool:
    """Whether kernels run on a device here, where no race is seen, and none may be made on purpose."""
    return jax.default_backend() == "tpu"


def skip_on_tpu() -> None:
    """For tests of a broken kernel: what a device does with it nobody knows, and it may hang for good."""
    if on_tpu():
        pytest.skip("broken kernels run in the interpreter alone")


@contextmanager
def tpu_interpreter(copies: Literal["eager", "on_wait"] = "on_wait") -> Iterator[None]:
    """Pallas kernels for TPU run on the CPU here, or on the TPU there is. Fails where a race was seen, or a copy that
    nobody waited for, which the interpreter alone sees.

    copies: when a copy is done: as soon as it is started, or not before somebody waits for it.
    """
    if on_tpu():
        jnp.full(_FLOATS, jnp.nan, jnp.float32).block_until_ready()  # freed at once: what is allocated next holds it
        yield
        return
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
