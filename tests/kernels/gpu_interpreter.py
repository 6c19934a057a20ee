"""The Mosaic GPU interpreter, strict: memory full of NaN, no read out of bounds, and every race is told.

Pallas' own knows no sums of wgmma that begin with given values, and does not look for races of what wgmma reads. Here
it learns both, so that it runs the kernel as it is compiled for a GPU, and a missing wait shows.

On a machine with a GPU nothing is interpreted: the same tests run the kernels themselves.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
from jax._src.pallas import primitives
from jax._src.pallas.mosaic.interpret import race_detection_state
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks as callbacks
from jax._src.pallas.mosaic_gpu.interpret import shared_memory as memories
from jax._src.pallas.mosaic_gpu.interpret.jaxpr_interpret import JaxprInterpreter
from jax._src.state.discharge import run_state_p
from jax._src.state.types import AbstractRef
from jax.experimental.pallas import mosaic_gpu

# Without types: those of jax 0.10 know less.
gpu_callbacks: Any = callbacks
shared_memory: Any = memories
plgpu: Any = mosaic_gpu

_FLOATS = 1 << 24
_GOES_ON = {"on_race": "warn"} if "on_race" in plgpu.InterpretGPUParams.__dataclass_fields__ else {}
"""From jax 0.12 the first race ends a kernel, unless told otherwise."""


def on_gpu() -> bool:
    """Whether kernels run on a device here, where no race is reported."""
    return jax.default_backend() == "gpu"


@contextmanager
def gpu_interpreter(detect_races: bool = False) -> Iterator[list[str]]:
    """Mosaic GPU kernels run on the CPU here, or on the GPU there is. Gives the reports of races, which fill while
    kernels run."""
    if on_gpu():
        jnp.full(_FLOATS, jnp.nan, jnp.float32).block_until_ready()  # freed at once: what is allocated next holds it
        yield []
        return
    params = plgpu.InterpretGPUParams(
        detect_races=detect_races, uninitialized_memory="nan", out_of_bounds_reads="raise", **_GOES_ON
    )
    reports: list[str] = []
    heard = SimpleNamespace(warning=reports.append)
    gpu_callbacks.reset_gpu_interpret_mode_state()
    with (
        plgpu.force_gpu_interpret_mode(params),
        patch.object(race_detection_state, "print", reports.append, create=True),  # jax 0.11
        patch.object(race_detection_state, "logger", heard, create=True),
        patch.object(race_detection_state, "logging", heard, create=True),
        patch.object(gpu_callbacks, "wgmma", _checked(gpu_callbacks.wgmma)),
        patch.object(JaxprInterpreter, "interpret", _with_sums(JaxprInterpreter.interpret)),
        patch.object(
            JaxprInterpreter, "_interpret_run_scoped_p", _run_scoped(JaxprInterpreter._interpret_run_scoped_p)
        ),
    ):
        yield reports


def _checked(wgmma: Callable[..., Any]) -> Callable[..., Any]:
    """Reads of wgmma are those of a copy: they see what was written before the last `commit_smem`."""

    def changed(*, thread: Any, source_info: Any = None, **arguments: Any) -> Any:
        memory = gpu_callbacks._get_shared_memory()
        for side in ("a", "b") if memory.detect_races else ():
            key = shared_memory.HostAllocationKey.from_array(arguments[f"{side}_allocation_key_as_array"])
            transforms = gpu_callbacks._remove_noop_transforms(arguments[f"{side}_transforms"])
            access = memory.access(key, jax.tree.map(int, transforms))
            clock: Any = memory.get_buffer_content(key, access, thread)[2]
            clock.inc(memory.get_next_tma_thread_id())  # later than what was written just before: as for a copy
            gpu_callbacks.get_races().check_read(thread, clock.async_smem_clock, key, access, source_info)
            with memory.lock:  # it is done before the thread goes on
                memory.clocks[thread].update(clock)
        return wgmma(thread=thread, source_info=source_info, **arguments)

    return changed


def _with_sums(interpret: Callable[..., Any]) -> Callable[..., Any]:
    """`run_state` goes the way of `run_scoped`, the one through which memory is allocated."""

    def changed(self: Any, jaxpr: Any, token: Any, *args: Any) -> Any:
        eqns = [
            eqn.replace(primitive=primitives.run_scoped_p) if eqn.primitive is run_state_p else eqn
            for eqn in jaxpr.eqns
        ]
        return interpret(self, jaxpr.replace(eqns=eqns), token, *args)

    return changed


def _run_scoped(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self: Any, eqn: Any, token: Any, get_invals: Callable[[], Any]) -> Any:
        if "is_initialized" not in eqn.params:
            return original(self, eqn, token, get_invals)
        return _run_state(self, eqn, token, get_invals())

    return changed


def _run_state(self: Any, eqn: Any, token: Any, values: Any) -> Any:
    """Puts values, which the program within sees as references, into registers; gives what is there afterwards."""
    jaxpr, space = eqn.params["jaxpr"], shared_memory.get_memory_space_idx(plgpu.MemorySpace.REGS)
    place = {"mesh_location": self.mesh_location, "thread": self.thread, "source_info": eqn.source_info}
    places = list(values)
    given = [i for i, var in enumerate(eqn.invars) if not isinstance(var.aval, AbstractRef)]
    for i in given:
        token, request = gpu_callbacks.call_make_allocation_request_array(
            token=token, compute_unit=self.thread, memory_space_id=space, initial_ref_count=1
        )
        token, places[i] = gpu_callbacks.call_allocate_buffer(
            token=token, allocation_request_as_array=request, value=values[i], **place
        )
    token, _ = self.interpret(jaxpr, token, *places)
    results = list(values)
    for i in given:
        token, results[i] = gpu_callbacks.call_get(
            token=token,
            result_shape_and_dtype=jaxpr.invars[i].aval.inner_aval,
            allocation_key_as_array=places[i],
            transforms=(),
            **place,
        )
        token = gpu_callbacks.call_deallocate_buffer(token=token, allocation_key_as_array=places[i], **place)
    return token, results
