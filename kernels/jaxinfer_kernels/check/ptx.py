"""Registers and spills of GPU kernels: PTX that XLA or Mosaic GPU left in a folder, assembled by ptxas once more."""

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_ENTRY = re.compile(r"Compiling entry function '(\S+)' for")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_THREADS = re.compile(r"^\.(?:max|req)ntid\s+(\d+)", re.MULTILINE)
_DYNAMIC = re.compile(r"smem_scratch_bytes=(\d+)")
_LOWERED = ".after_layout_inference.txt"
_ARCHITECTURE = re.compile(r"^\.target\s+(sm_\w+)", re.MULTILINE)


class KernelReport(NamedTuple):
    """What ptxas says of a kernel. spilled: bytes stored and loaded. shared: bytes of shared memory, for kernels of
    Mosaic GPU with what they ask for at launch. threads: of a block, where the PTX says it. wgmma: whether the PTX has
    that instruction.
    """

    name: str
    registers: int
    spilled: int
    shared: int
    threads: int | None = None
    wgmma: bool = False

    @property
    def blocks(self) -> int | None:
        """Blocks that a Hopper multiprocessor holds at once, by registers and shared memory."""
        if self.threads is None:
            return None
        warps = -(-self.threads // 32)
        registers = warps * (-(-self.registers * 32 // 256) * 256)
        return min(65536 // registers, (228 << 10) // (self.shared + 1024), 64 // warps, 32)


def find_ptxas() -> Path | None:
    """ptxas of the package nvidia-cuda-nvcc, or the first on PATH."""
    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for program in sorted(Path(folder).glob("*/bin/ptxas")):
            return program
    found = shutil.which("ptxas")
    return Path(found) if found else None


class _Lowered(NamedTuple):
    """A kernel that Mosaic GPU lowered. text: without its number. shared: bytes that it asks for at launch."""

    name: str
    text: str
    shared: int


class GpuKernels:
    """The kernels of programs that one process compiles, one after the other.

    From jax 0.12, Mosaic GPU compiles a kernel once a process, whichever programs it is in. It numbers kernels as it
    compiles them, and as it lowers them, so that a kernel's numbers may differ.
    """

    def __init__(self, ptxas: Path):
        self._ptxas = ptxas
        self._known: dict[str, KernelReport] = {}

    def reports(self, folder: Path) -> list[KernelReport]:
        """Reports of the kernels of the program whose compilers wrote into `folder`.

        Raises RuntimeError where the PTX of a kernel is missing.
        """
        written = sorted(folder.rglob("*.ptx"), key=_number)
        lowered = [_read_lowered(file) for file in sorted(folder.rglob(f"*{_LOWERED}"), key=_number)]
        mosaic = sorted({kernel.name for kernel in lowered})
        reports = [
            report for file in written if _base(file.stem) not in mosaic for report in _assemble(file, self._ptxas)
        ]
        for name in mosaic:
            files = [file for file in written if _base(file.stem) == name]
            reports += self._of_name([kernel for kernel in lowered if kernel.name == name], files)
        return reports

    def _of_name(self, lowered: list[_Lowered], files: list[Path]) -> list[KernelReport]:
        """Reports of a program's kernels of one name, which are compiled in the order in which they are lowered."""
        different = {kernel.text: kernel for kernel in lowered}
        new = [kernel for text, kernel in different.items() if text not in self._known]
        compiled = lowered if len(files) == len(lowered) else new  # jax 0.11 compiles all of them
        if len(files) != len(compiled):
            raise RuntimeError(
                f"{len(compiled)} kernels {lowered[0].name} are compiled; the PTX of {len(files)} is there"
            )
        for kernel, file in zip(compiled, files, strict=True):
            (report,) = _assemble(file, self._ptxas)
            self._known[kernel.text] = report._replace(shared=report.shared + kernel.shared)
        return [self._known[text] for text in different]


def _read_lowered(file: Path) -> _Lowered:
    stem = file.name.removesuffix(_LOWERED)
    resources = _DYNAMIC.search(file.with_name(f"{stem}.resources.txt").read_text())
    return _Lowered(_base(stem), file.read_text().replace(f'"{stem}"', ""), int(resources[1]) if resources else 0)


def _base(stem: str) -> str:
    """A kernel's name without the number that Mosaic GPU gives it."""
    return stem.rpartition("_")[0]


def _number(file: Path) -> tuple[int, str]:
    number = file.name.partition(".")[0].rpartition("_")[2]
    return int(number) if number.isdecimal() else 0, file.name


def parse_report(text: str) -> list[KernelReport]:
    """The kernels of ptxas' output under -v."""
    reports = []
    for part in re.split(r"(?=ptxas info\s*: Compiling entry function)", text):
        entry, spills = _ENTRY.search(part), _SPILLS.search(part)
        used, shared = _USED.search(part), _SHARED.search(part)
        if entry and used:
            spilled = int(spills[1]) + int(spills[2]) if spills else 0
            reports.append(KernelReport(entry[1], int(used[1]), spilled, int(shared[1]) if shared else 0))
    return reports


def _assemble(file: Path, ptxas: Path) -> list[KernelReport]:
    text = file.read_text()
    target = _ARCHITECTURE.search(text)
    if ".entry" not in text or target is None:
        return []
    command = [str(ptxas), "-v", "-O3", f"-arch={target[1]}", "-o", "/dev/null", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ptxas does not take {file.name}: {done.stderr[-500:]}")
    reports = parse_report(done.stderr + done.stdout)
    return [_with_launch(reports[0], text)] if len(reports) == 1 else reports


def _with_launch(report: KernelReport, text: str) -> KernelReport:
    """Mosaic GPU writes a file a kernel."""
    threads = _THREADS.search(text)
    return report._replace(threads=int(threads[1]) if threads else None, wgmma="wgmma.mma_async" in text)
