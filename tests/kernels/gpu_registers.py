"""The Mosaic GPU interpreter with a wgmma that takes its left side from registers, and the races that it reports."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import jax
import ml_dtypes
import numpy as np
from jax._src.pallas.mosaic.interpret import race_detection_state
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks, shared_memory
from jax.experimental.pallas import mosaic_gpu

from tests.kernels.gpu_interpreter import gpu_interpreter, on_gpu

_NAMESPACE: Any = mosaic_gpu  # types are checked against a JAX whose interpreter is private
_ACCESS = re.compile(r"(read|write) of .*\(([\w.<>]+)\)$", re.MULTILINE)


@contextmanager
def register_interpreter() -> Iterator[list[str]]:
    """As `gpu_interpreter`, with races detected and told: jax 0.12 raises at the first, unless it is to log them."""
    if on_gpu():
        with gpu_interpreter() as reports:
            yield reports
        return
    told = {"on_race": "warn"} if hasattr(_NAMESPACE.InterpretGPUParams, "on_race") else {}
    params = _NAMESPACE.InterpretGPUParams(detect_races=True, **told)
    with (
        gpu_interpreter(detect_races=True) as reports,
        _NAMESPACE.force_gpu_interpret_mode(params),
        patch.object(race_detection_state, "logger", SimpleNamespace(warning=reports.append), create=True),
        patch.object(race_detection_state, "logging", SimpleNamespace(warning=reports.append), create=True),
        patch.object(gpu_callbacks, "wgmma", _wgmma),
    ):
        yield reports


@contextmanager
def coarse_sums(bits: int = 14) -> Iterator[None]:
    """Sums of products of e4m3 have so many bits, of an instruction of 32 values after the other: as Hopper's have.

    Surely it cuts in another order; that it cuts is what matters. DeepSeek-V3, arXiv:2412.19437, section 3.3.2.
    """

    def added(total: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        if left.dtype != np.dtype(ml_dtypes.float8_e4m3fn):
            return _exact_sums(total, left, right)
        for first in range(0, left.shape[1], 32):
            mantissa, exponent = np.frexp(_exact_sums(total, left[:, first : first + 32], right[first : first + 32]))
            total = np.ldexp(np.trunc(mantissa * 2**bits) / 2**bits, exponent)
        return total

    with patch(f"{__name__}._added", added):
        yield


def races(reports: list[str]) -> set[str]:
    """The reports without numbers and clocks: "write in step, read in load", by the names of functions."""
    return {
        ", ".join(f"{kind} in {function.split('.')[-1]}" for kind, function in _ACCESS.findall(report))
        for report in reports
    }


def _wgmma(**given: Any) -> Any:
    """wgmma whose left side may be a value, and whose reads count for races: Pallas' interpreter does neither."""
    memory: Any = gpu_callbacks._get_shared_memory()
    thread, interpreter = given["thread"], cast(Any, shared_memory)
    about = interpreter.GPULoggingInfo(given["mesh_location"], thread, given["source_info"])

    def place(name: str) -> tuple[Any, Any]:
        key = gpu_callbacks.HostAllocationKey.from_array(given[f"{name}_allocation_key_as_array"])
        transforms = jax.tree.map(int, gpu_callbacks._remove_noop_transforms(given[f"{name}_transforms"]))
        return key, memory.access(key, transforms)

    def read(name: str) -> Any:
        key, access = place(name)
        value, _, clock = memory.get_buffer_content(key, access, thread, logging_info=about)
        if clock is not None and name != "acc":
            gpu_callbacks.get_races().check_read(thread, clock.async_smem_clock, key, access, given["source_info"])
        return value

    left = np.asarray(given["a_allocation_key_as_array"])
    left = left if left.ndim == 2 else read("a")
    total = read("acc")
    total = _added(total, left, read("b"))
    memory.store_buffer_content(*place("acc"), total, thread, logging_info=about)
    return given["token"]


def _exact_sums(total: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return total + np.matmul(left.astype(total.dtype), right.astype(total.dtype))


_added = _exact_sums
"""What a product adds to the accumulator."""
