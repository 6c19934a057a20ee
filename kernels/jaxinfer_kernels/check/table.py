"""The table of results as text."""

from collections.abc import Callable, Sequence

from jaxinfer_kernels.check.results import Result
from jaxinfer_kernels.check.sizes import size

_LONGEST_PROBLEM = 600


_COLUMNS: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("compile", lambda result: "-" if result.seconds is None else f"{result.seconds:.1f}s"),
    ("temps", lambda result: size(result.temporaries)),
    ("aliased", lambda result: size(result.aliased)),
    ("VMEM", lambda result: size(result.vmem)),
    ("SMEM", lambda result: size(result.smem)),
    ("regs", lambda result: _registers(result)),
    ("spills", lambda result: size(result.spilled)),
)


def _registers(result: Result) -> str:
    """Registers of a thread, and how many blocks a multiprocessor holds, where that is known: `182 x2`."""
    blocks = "" if result.blocks is None else f" x{result.blocks}"
    return "-" if result.registers is None else f"{result.registers}{blocks}"


def render(results: Sequence[Result]) -> str:
    """A line a result, under a heading a program; below it what failed, in full, and a count."""
    width = max([len(result.shape) for result in results], default=0)
    lines = [" ".join(["target", "shape".ljust(width), *[f"{name:>7}" for name, _ in _COLUMNS]]).rstrip()]
    program = None
    for result in sorted(results, key=lambda result: (result.program, result.shape)):
        if result.program != program:
            program = result.program
            lines.append(program)
        lines.append(f"  {result.target:4} {result.shape:{width}} {_figures(result)}")
        lines += [f"         {line}" for line in result.collectives]
    failed = [result for result in results if result.state == "failed"]
    for result in failed:
        lines.append(f"FAILED  {result.target}  {result.program}  {result.shape}")
        lines += [f"    {problem[:_LONGEST_PROBLEM]}" for problem in result.problems]
    left_out = sum(result.state == "not compiled" for result in results)
    recorded = sum(result.recorded for result in results)
    said = f" ({recorded} as recorded, not compiled again)" if recorded else ""
    lines.append(f"{len(results) - len(failed) - left_out} ok{said}, {len(failed)} failed, {left_out} not compiled")
    return "\n".join(lines)


def progress(result: Result) -> str:
    """One line for who waits."""
    took = "" if result.seconds is None else f" in {result.seconds:.1f} s"
    if result.recorded:
        took = ", as recorded"
    return f"{result.target}: {result.program}, {result.shape}: {result.state}{took}"


def _figures(result: Result) -> str:
    if result.state == "not compiled":
        return f"not compiled: {'; '.join(result.problems)}"
    figures = " ".join(f"{figure(result):>7}" for _, figure in _COLUMNS)
    return figures + ("  FAILED" if result.state == "failed" else "")
