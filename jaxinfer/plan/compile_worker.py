"""The process that compiles programs for devices that are not here: a pickled `Request` in, a line a program out.

Started by `plan/compiling.py`, which sets its environment and its limits.
"""

import contextlib
import ctypes
import json
import math
import pickle
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxinfer_kernels.check.collectives import read_collectives
from jaxinfer_kernels.check.targets import Target, read_target

from jaxinfer.parallel.mesh import platform_kind
from jaxinfer.plan.compiled import MARK, Collective, Compiled, ProgramName, Request, label
from jaxinfer.plan.stand_in import first_backend, stand_in
from jaxinfer.runner.programs.compiled import Programs

_LONGEST_ERROR = 500
_PR_SET_PDEATHSIG = 1
"""Constant of linux/prctl.h."""


def main() -> None:
    """Compiles what standard input asks for."""
    with contextlib.suppress(AttributeError, OSError):  # of Linux: it ends with the process that asks
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    request: Request = pickle.load(sys.stdin.buffer)
    programs, mesh = programs_of(request)
    for name in request.names:
        try:
            told: dict[str, Any] = compile_program(programs, mesh, name)._asdict()
        except Exception as error:
            told = {"program": label(name), "error": f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]}
        print(f"\n{MARK}{json.dumps(told)}", flush=True)  # a compiler may have left a line open


def programs_of(request: Request) -> tuple[Programs, Mesh]:
    """The engine's own programs over a model without values, and the mesh of its devices."""
    target = read_target(Path(request.folder), request.topology.target)
    platform = platform_kind(target.platform)
    devices = _devices(target, request)[: request.mesh.size]
    dtype, block_size = jnp.dtype(request.dtype), request.shapes.block_size
    backend = first_backend(platform)
    model = stand_in(request.decoder, dtype, request.mesh, devices, platform, block_size, backend)
    return Programs(model, request.shapes), model.mesh


def _devices(target: Target, request: Request) -> list[Any]:
    """Return the devices of the request's topology, or the first of the target's own if that is larger: XLA knows no
    part of a host. A kind of chip may have different names for JAX and XLA."""
    kind, colon, least = target.topology.rpartition(":")
    if request.topology.chips < math.prod(map(int, least.split("x"))):
        return target.devices()
    shape = "x".join(map(str, request.topology.shape))
    return target.on(f"{kind}{colon}{shape}").devices()


def compile_program(programs: Programs, mesh: Mesh, name: ProgramName) -> Compiled:
    """Compiles it, and reads what the compiler tells."""
    started = time.perf_counter()
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        compiled = programs.compile(name)
    seconds, memory = time.perf_counter() - started, compiled.memory_analysis()
    found = Counter(read_collectives(compiled.as_text()))
    return Compiled(
        label(name),
        round(seconds, 2),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        int(memory.argument_size_in_bytes),
        int(memory.alias_size_in_bytes),
        int(memory.output_size_in_bytes),
        int(memory.temp_size_in_bytes),
        tuple(Collective(one.kind, one.array, one.size, count) for one, count in found.items()),
    )


if __name__ == "__main__":
    main()
