"""Result: what compiling one case for one target gave; made of the executable, and what is wrong with it."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxinfer_kernels.check.cases import Case
from jaxinfer_kernels.check.hlo import moves, scoped_memory
from jaxinfer_kernels.check.ptx import KernelReport, find_ptxas, kernel_reports
from jaxinfer_kernels.check.targets import Target

State = Literal["ok", "failed", "not compiled"]

_VMEM = 1
_SMEM = 4
"""XLA's numbers of a TPU's memories in HLO."""


class Result(NamedTuple):
    """A row of the table. Sizes in bytes; None where a target has no such thing, or nothing tells it.

    seconds: of tracing and compiling. temporaries: that the program allocates in HBM. aliased: of arguments that
    results take the place of. vmem, smem: most that one kernel takes; on a GPU smem is static shared memory.
    registers, spilled: most registers, and spilled bytes in all, of a GPU program's kernels.
    problems: why it failed, or why it was not compiled.
    """

    target: str
    program: str
    shape: str
    state: State
    problems: tuple[str, ...] = ()
    seconds: float | None = None
    temporaries: int | None = None
    aliased: int | None = None
    vmem: int | None = None
    smem: int | None = None
    registers: int | None = None
    spilled: int | None = None


def inspect(case: Case, target: Target, executable: Any, seconds: float, dump: Path) -> Result:
    """The row of a case that compiled. dump: where PTX of its kernels lies, on a GPU."""
    memory, text = executable.memory_analysis(), executable.as_text()
    kernels = _kernels(dump) if target.platform == "cuda" else None
    problems = [
        *_copied(case, text),
        *_memory(case, target, memory),
        *[f"{kernel.name} spills {kernel.spilled} bytes" for kernel in kernels or [] if kernel.spilled],
    ]
    scoped = scoped_memory(text)
    shared = max((kernel.shared for kernel in kernels), default=None) if kernels is not None else scoped.get(_SMEM)
    return Result(
        target.name,
        case.program,
        case.shape,
        "failed" if problems else "ok",
        tuple(problems),
        seconds,
        memory.temp_size_in_bytes,
        memory.alias_size_in_bytes,
        scoped.get(_VMEM),
        shared,
        max((kernel.registers for kernel in kernels or []), default=None),
        sum(kernel.spilled for kernel in kernels) if kernels else None,
    )


def failure(case: Case, target: str, problem: str, seconds: float | None = None) -> Result:
    """The row of a case that does not compile."""
    return Result(target, case.program, case.shape, "failed", (problem,), seconds)


def _copied(case: Case, text: str) -> list[str]:
    names: dict[int, str] = {}
    for kept in case.kept:  # what has one size cannot be told apart
        names[kept.size] = f"{names[kept.size]} or {kept.name}" if kept.size in names else kept.name
    return [f"{move.name} = {move.result} {move.operation}: copies {names[move.size]}" for move in moves(text, names)]


def _memory(case: Case, target: Target, memory: Any) -> list[str]:
    problems = []
    if memory.alias_size_in_bytes < case.donated:
        problems.append(f"KV pages of {case.donated} bytes are not updated in place: {memory.alias_size_in_bytes} are")
    if case.donated and memory.temp_size_in_bytes >= case.donated:
        problems.append(f"temporaries of {memory.temp_size_in_bytes} bytes are as large as the KV pages")
    if memory.argument_size_in_bytes + memory.temp_size_in_bytes > target.hbm_bytes:
        problems.append(f"arguments and temporaries do not fit {target.hbm_bytes} bytes of HBM")
    return problems


def _kernels(dump: Path) -> list[KernelReport] | None:
    """None where no ptxas is there to ask."""
    ptxas = find_ptxas()
    return kernel_reports(dump, ptxas) if ptxas else None
