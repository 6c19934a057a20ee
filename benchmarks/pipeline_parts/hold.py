"""Devices are held up while the host's part of dispatching is timed, as an accelerator is by the step before."""

import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.pipeline_parts.form import Form

_LONGEST_HOLD = 0.5
"""Seconds, should a call wait for a device that is held up."""


class Hold:
    """A context in which a form's devices wait before all that is submitted to them."""

    def __init__(self, form: Form):
        self._form, self._go = form, threading.Event()

    def __enter__(self) -> None:
        self._form.hold(self._wait_on_device)
        time.sleep(0.005)  # until every device has begun to wait

    def __exit__(self, *_: object) -> None:
        self._go.set()

    def _wait_on_device(self, array: Any) -> Any:
        # A program of less work is run by the thread that calls it.
        some = jnp.ones((64, 64), array.dtype) * array.ravel()[0]
        zero = jax.pure_callback(self._wait, jax.ShapeDtypeStruct((), array.dtype), (some @ some)[0, 0])
        return array + zero

    def _wait(self, value: Any) -> Any:
        self._go.wait(_LONGEST_HOLD)
        return np.zeros((), value.dtype)
