"""Result: what compiling one case for one target gave; made of the executable, and what is wrong with it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxinfer_kernels.check.cases import Case
from jaxinfer_kernels.check.collectives import exchange_problems, read_collectives, summary
from jaxinfer_kernels.check.hlo import moves, scoped_memory
from jaxinfer_kernels.check.ptx import GpuKernels, KernelReport
from jaxinfer_kernels.check.schedule import read_schedules
from jaxinfer_kernels.check.targets import Target

State = Literal["ok", "failed", "not compiled"]

_VMEM = 1
"""XLA's number of that memory in HLO."""


class Taken(NamedTuple):
    """What a program's kernels take on a chip, and what is wrong with them; fields as in `Result`."""

    problems: tuple[str, ...] = ()
    vmem: int | None = None
    smem: int | None = None
    registers: int | None = None
    spilled: int | None = None
    blocks: int | None = None


class Result(NamedTuple):
    """A row of the table. Sizes in bytes; None where a target has no such thing, or nothing tells it.

    seconds: of tracing and compiling. temporaries: that the program allocates in HBM. aliased: of arguments that
    results take the place of. vmem, smem: most that one kernel takes; on a GPU smem is shared memory, with what
    kernels of Mosaic GPU ask for at launch, and blocks is how many of the kernel with most of it a multiprocessor
    holds.
    registers: most of a GPU program's kernels. spilled: bytes of registers stored and loaded, in all, as often as the
    program's text has them; on a TPU by Pallas kernels.
    problems: why it failed, or why it was not compiled.
    collectives: what devices send each other.
    digest: of all that this follows from; empty for what cannot be recorded. recorded: not compiled this time.
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
    blocks: int | None = None
    collectives: tuple[str, ...] = ()
    digest: str = ""
    recorded: bool = False


def inspect(
    case: Case, target: Target, executable: Any, seconds: float, dump: Path, kernels: GpuKernels | None
) -> Result:
    """The row of a case that compiled. dump: where its compiler left what it tells of the kernels. kernels: None where
    nobody can be asked about a GPU's."""
    memory, text = executable.memory_analysis(), executable.as_text()
    taken = _on_gpu(case, dump, kernels) if target.platform == "cuda" else _on_tpu(dump, text)
    found = [] if case.exchange is None else read_collectives(text)
    exchanged = [] if case.exchange is None else exchange_problems(case.exchange, found)
    problems = (*_copied(case, text), *_memory(case, target, memory), *exchanged, *taken.problems)
    return Result(
        target.name,
        case.program,
        case.shape,
        "failed" if problems else "ok",
        problems,
        seconds,
        memory.temp_size_in_bytes,
        memory.alias_size_in_bytes,
        *taken[1:],
        summary(found),
    )


def from_json(values: dict[str, Any]) -> Result:
    """A result that went through JSON, where tuples are lists."""
    return Result(**{**values, **{name: tuple(values.get(name, ())) for name in ("problems", "collectives")}})


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


def _on_gpu(case: Case, dump: Path, compiled: GpuKernels | None) -> Taken:
    kernels = compiled.reports(dump) if compiled else []
    if not kernels:
        return Taken()
    registers, shared = max(kernel.registers for kernel in kernels), max(kernel.shared for kernel in kernels)
    blocks = max(kernels, key=lambda kernel: kernel.shared).blocks
    spilled = sum(kernel.spilled for kernel in kernels)
    return Taken(gpu_problems(case, kernels), None, shared, registers, spilled, blocks)


def _may_spill(kernel: KernelReport) -> int:
    """Bytes: none of a kernel of ours; of one that XLA wrote a few registers, which its choice of fusions decides."""
    return 64 if "_fusion" in kernel.name else 0


def gpu_problems(case: Case, kernels: Sequence[KernelReport]) -> tuple[str, ...]:
    """What is wrong with the kernels of a program for a GPU."""
    problems = [
        f"{kernel.name} spills {kernel.spilled} bytes" for kernel in kernels if kernel.spilled > _may_spill(kernel)
    ]
    products = [kernel for kernel in kernels if case.wgmma in kernel.name] if case.wgmma else []
    problems += [f"{kernel.name} has no wgmma" for kernel in products if not kernel.wgmma]
    if case.wgmma and not products:
        problems.append(f"no kernel has {case.wgmma} in its name")
    return tuple(problems)


def _on_tpu(dump: Path, text: str) -> Taken:
    kernels, vmem = read_schedules(dump, text), scoped_memory(text).get(_VMEM)
    if not kernels:
        return Taken(vmem=vmem)
    problems = tuple(kernel.problem for kernel in kernels if kernel.problem)
    return Taken(
        problems, vmem, max(kernel.smem for kernel in kernels), None, sum(kernel.spilled for kernel in kernels)
    )
