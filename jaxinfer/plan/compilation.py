"""A MeshPlan whose programs were compiled: its temporaries are the compiler's, and the rest is held against it."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace

from jaxinfer.engine.step.buckets import bucket_of, make_buckets
from jaxinfer.plan.compiled import Compiled, ProgramName, Request, label
from jaxinfer.plan.compiling import Bounds, CompileAnswer, compile_programs, target_folder, target_of
from jaxinfer.plan.estimate import MeshPlan
from jaxinfer.plan.expected import differences

_COMPILERS = {"tpu": "libtpu", "cuda": "jax_cuda13_plugin"}
"""The module that compiles for a platform, which the extra of that name brings."""
_COUNTED = ("mixed", "sample", "multi_step", "speculate")
"""Kinds of programs whose temporaries an engine measures."""
_EXTRAS = {"tpu": "compile-tpu", "cuda": "compile-gpu"}


@dataclass(frozen=True)
class Compilation:
    """Compiled programs of a mesh. differs: differences between a compiler's figures and those from shapes."""

    answers: tuple[CompileAnswer, ...]
    differs: tuple[str, ...]

    @property
    def programs(self) -> list[tuple[Compiled, CompileAnswer]]:
        """Results of compilers for each program that was compiled."""
        return [(answer.compiled, answer) for answer in self.answers if answer.compiled is not None]

    @property
    def problems(self) -> dict[str, str]:
        """Why each other program was not compiled."""
        return {label(answer.name): answer.problem for answer in self.answers if answer.compiled is None}

    @property
    def temporaries(self) -> int | None:
        """Temporary bytes of the largest program, as an engine measures them; None if one that counts was not
        compiled."""
        counted = [answer.compiled for answer in self.answers if answer.name[0] in _COUNTED]
        known = [compiled.temporary for compiled in counted if compiled is not None]
        return max(known) if known and len(known) == len(counted) else None


def obstacle(plan: MeshPlan) -> str | None:
    """Why nothing can be compiled for a mesh here; None: it can."""
    target = target_of(plan.chip)
    if target is None:
        return f"no compiler's description of {plan.chip.name} is known"
    if importlib.util.find_spec(_COMPILERS[target.platform]) is None:
        return f"pip install 'jaxinfer[{_EXTRAS[target.platform]}]' brings what compiles for {plan.chip.name}"
    if plan.refused:
        return "no engine serves it"
    if plan.stages:
        return "programs of stages are not compiled yet"
    if plan.drafter is not None and plan.drafter.model is not None:
        return "programs with a draft model are not compiled here yet"
    return None if plan.memory.blocks else "the model does not fit"


def program_names(plan: MeshPlan, batch: int) -> tuple[ProgramName, ...]:
    """Return the programs of a decode step of `batch` requests, and the largest of each kind."""
    shapes, buckets = plan.shapes, make_buckets(plan.shapes)
    rows = bucket_of(min(-(-batch // plan.mesh.data), shapes.max_num_seqs), buckets.rows)
    names: list[ProgramName] = [
        ("admit", 0),
        ("decode", rows),
        ("mixed", buckets.tokens[-1]),
        ("sample", buckets.scored[-1]),
    ]
    if shapes.decode_steps > 1:
        names.append(("multi_step", buckets.rows[-1]))
    if shapes.drafting is not None:
        names.append(("speculate", buckets.rows[-1]))
    return tuple(names)


def compile_plan(
    plan: MeshPlan,
    batch: int,
    bounds: Bounds,
    again: Callable[[int], MeshPlan],
    told: Callable[[str], None] | None = None,
) -> tuple[MeshPlan, Compilation]:
    """The plan with the compiler's temporaries, and what it said. again: plans the mesh with what they take. told:
    hears a line about each program."""

    def tell(answer: CompileAnswer) -> None:
        if told is not None:
            told(f"{plan.name}: {label(answer.name)} {_said(answer)}")

    request = Request(
        plan.model.config,
        plan.model.dtype.name,
        plan.mesh,
        plan.topology,
        str(target_folder()),
        plan.shapes,
        program_names(plan, batch),
    )
    answers = compile_programs(request, bounds, tell)
    found = Compilation(tuple(answers), ())
    differs = tuple(text for one, answer in found.programs for text in differences(plan, answer.name, one))
    found = replace(found, differs=differs)
    return plan if found.temporaries is None else again(found.temporaries), found


def _said(answer: CompileAnswer) -> str:
    if answer.compiled is None:
        return f"was not compiled: {answer.problem}"
    return "was compiled before" if answer.kept else f"compiled in {answer.compiled.seconds:.1f} s"
