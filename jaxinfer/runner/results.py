"""Results of a step, read by the host from arrays on the device."""

import contextlib
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxinfer.engine.device.runner import DeviceMemory
from jaxinfer.engine.step.layouts import LOGPROBS
from jaxinfer.engine.step.packed import PackedBurst, PackedForward
from jaxinfer.engine.step.plan import LogprobArrays, StepResult
from jaxinfer.runner.sample import SampledArrays


class SampledStep(NamedTuple):
    """A step in flight. sampled: None where nothing was scored: then `hidden` tells when it has ended.

    Of several processes that run the step together, those that have no part of its results get zeros.
    """

    step: PackedForward
    hidden: jax.Array
    sampled: SampledArrays | None

    @classmethod
    def begun(cls, step: PackedForward, hidden: jax.Array, sampled: SampledArrays) -> "SampledStep":
        """Starts to copy what the host will read."""
        if is_here(sampled.tokens):
            sampled.tokens.copy_to_host_async()
        if step.logprobs and is_here(sampled.logprobs):
            sampled.logprobs.copy_to_host_async()
        return cls(step, hidden, sampled)

    def result(self) -> StepResult:
        """Waits for it."""
        step, sampled = self.step, self.sampled
        if sampled is None:
            self.hidden.block_until_ready()
            return step.result(np.zeros(0, np.int32), None)
        if not is_here(sampled.tokens):
            self.hidden.block_until_ready()
            return step.result(np.zeros(step.num_scored, np.int32), None)
        tokens = step.of_scored(np.asarray(sampled.tokens))
        if not step.logprobs:
            return step.result(tokens, None)
        return step.result(tokens, logprob_arrays(step.of_scored(np.asarray(sampled.logprobs))))


class BurstStep(NamedTuple):
    """Several tokens a row in flight. counts: [rows], or [rows, 4] with drafts, as `Burst` has them. Processes that
    have no part of the results get zeros; `here` tells them when it has ended."""

    step: PackedBurst
    here: jax.Array
    tokens: jax.Array
    counts: jax.Array
    logprobs: jax.Array | None

    @classmethod
    def begun(
        cls, step: PackedBurst, here: jax.Array, tokens: jax.Array, counts: jax.Array, logprobs: jax.Array | None
    ) -> "BurstStep":
        """Starts to copy what the host will read."""
        logprobs = logprobs if step.logprobs else None
        for array in (tokens, counts, logprobs):
            if array is not None and is_here(array):
                array.copy_to_host_async()
        return cls(step, here, tokens, counts, logprobs)

    def result(self) -> StepResult:
        """Waits for it."""
        if not is_here(self.tokens):
            self.here.block_until_ready()
            return self.step.result(np.zeros(self.tokens.shape, np.int32), np.zeros(len(self.tokens), np.int32))
        tokens, counts = np.asarray(self.tokens), np.asarray(self.counts)
        if counts.ndim == 1:
            return self.step.result(tokens, counts)
        logprobs, (gained, *drafts) = None, counts.T
        if self.logprobs is not None:
            logprobs = logprob_arrays(self.step.of_rows(np.asarray(self.logprobs)))
        return self.step.result(tokens, gained, *drafts, logprobs=logprobs)


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
