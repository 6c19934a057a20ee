"""Results of a step, read by the host from arrays on the device."""

import contextlib
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxinfer.engine.device.runner import DeviceMemory
from jaxinfer.engine.step.layouts import LOGPROBS
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.plan import LogprobArrays, StepResult


class SampledStep(NamedTuple):
    """A step in flight. tokens: of scored positions, [S]; of rows that may get several, [rows, row_tokens]; None where
    nothing was scored. counts: of rows, [rows], or [rows, 4] with drafts, as `RowTokens` has them. logprobs: None where
    nobody asks.

    Of several processes that run the step together, those that have no part of its results get zeros; `here` tells them
    when it has ended.
    """

    step: PackedStep
    here: jax.Array
    tokens: jax.Array | None
    counts: jax.Array | None = None
    logprobs: jax.Array | None = None

    @classmethod
    def begun(
        cls,
        step: PackedStep,
        here: jax.Array,
        tokens: jax.Array,
        logprobs: jax.Array | None,
        counts: jax.Array | None = None,
    ) -> "SampledStep":
        """Starts to copy what the host will read."""
        logprobs = logprobs if step.logprobs else None
        for array in (tokens, counts, logprobs):
            if array is not None and is_here(array):
                array.copy_to_host_async()
        return cls(step, here, tokens, counts, logprobs)

    def result(self) -> StepResult:
        """Waits for it."""
        if self.tokens is None or not is_here(self.tokens):
            self.here.block_until_ready()
            return self._nothing()
        step, tokens, logprobs = self.step, np.asarray(self.tokens), None
        if self.logprobs is not None:
            logprobs = logprob_arrays(step.picked(np.asarray(self.logprobs)))
        if self.counts is None:
            return step.result_of_scored(step.picked(tokens), logprobs)
        counts = np.asarray(self.counts)
        gained, *drafts = (counts,) if counts.ndim == 1 else counts.T
        return step.result_of_rows(tokens, gained, *drafts, logprobs=logprobs)

    def _nothing(self) -> StepResult:
        if self.tokens is None or self.counts is None:
            return self.step.result_of_scored(np.zeros(self.step.num_scored, np.int32), None)
        rows = len(self.tokens)
        return self.step.result_of_rows(np.zeros(self.tokens.shape, np.int32), np.zeros(rows, np.int32))


def is_here(array: jax.Array) -> bool:
    """Return whether a device of this process has some of the array."""
    return array.is_fully_addressable or bool(array.addressable_shards)


def logprob_arrays(rows: np.ndarray) -> LogprobArrays:
    """rows: int32 [..., LOGPROBS.size]."""
    view = LOGPROBS.views(rows)
    floats = {name: view[name].view(np.float32) for name in ("logprobs", "top_logprobs")}
    return LogprobArrays(**(view | floats))


def drop(arrays: Any) -> None:
    """Deletes arrays, whose steps may have failed."""
    for array in jax.tree.leaves(arrays):
        with contextlib.suppress(Exception):  # a fault that was reported already; its step must have ended
            array.block_until_ready()
        array.delete()


def memory_of(device: Any) -> DeviceMemory:
    """A device that has failed tells nothing."""
    told = None
    with contextlib.suppress(Exception):
        told = device.memory_stats()
    told = told or {}
    return DeviceMemory(*(told.get(name, 0) for name in ("bytes_in_use", "peak_bytes_in_use", "bytes_limit")))
