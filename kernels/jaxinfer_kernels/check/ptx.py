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


def kernel_reports(folder: Path, ptxas: Path) -> list[KernelReport]:
    """Reports of all kernels whose PTX lies in `folder`."""
    return [report for file in sorted(folder.rglob("*.ptx")) for report in _assemble(file, ptxas)]


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
    return [_with_launch(reports[0], file, text)] if len(reports) == 1 else reports


def _with_launch(report: KernelReport, file: Path, text: str) -> KernelReport:
    """Mosaic GPU writes a file a kernel, and what it asks for at launch into another beside it."""
    threads, resources = _THREADS.search(text), file.with_suffix(".resources.txt")
    dynamic = _DYNAMIC.search(resources.read_text()) if resources.is_file() else None
    shared = report.shared + int(dynamic[1]) if dynamic else report.shared
    wgmma = "wgmma.mma_async" in text
    return report._replace(shared=shared, threads=int(threads[1]) if threads else None, wgmma=wgmma)
