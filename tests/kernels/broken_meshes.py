"""scripts/check_programs.py over an engine with the fault that JAXINFER_FAULT names."""

import os
import sys
from typing import Any

import check_programs
import jax

from jaxinfer.runner.programs.table import Name, Program, ProgramTable
from jaxinfer.runner.step import sample
from jaxinfer.runner.step.forward import Forward, ForwardPrograms

_draw, _program, _finish = sample.sample_tokens, ProgramTable.__getitem__, ForwardPrograms._finish


def gathered(logits: jax.Array, *others: Any, vocabulary: Any, **more: Any) -> Any:
    """Draws of logits that every device gathers first, of which each keeps its own columns."""
    whole = jax.lax.all_gather(logits, vocabulary.axes, axis=1, tiled=True)
    first = jax.lax.axis_index(vocabulary.axes) * logits.shape[1]
    own = jax.lax.dynamic_slice_in_dim(jax.lax.optimization_barrier(whole), first, logits.shape[1], 1)
    return _draw(own, *others, vocabulary=vocabulary, **more)


def undonated(self: ProgramTable, name: Name) -> Program:
    """No argument may be overwritten."""
    return _program(self, name)._replace(donated=())


def widened(self: ForwardPrograms, *arguments: Any, **named: Any) -> Forward:
    """Hands over twice as many bytes as it has."""
    out = _finish(self, *arguments, **named)
    return out._replace(hidden=out.hidden.astype(jax.numpy.float32))


def install(fault: str) -> None:
    if fault == "gather":
        sample.sample_tokens = gathered
    if fault == "undonated":
        ProgramTable.__getitem__ = undonated
    if fault == "widened":
        ForwardPrograms._finish = widened


if __name__ == "__main__":
    install(os.environ["JAXINFER_FAULT"])
    sys.exit(check_programs.run([sys.executable, "-m", "tests.kernels.broken_meshes"]))
