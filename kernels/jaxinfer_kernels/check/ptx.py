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
_ARCHITECTURE = re.compile(r"^\.target\s+(sm_\w+)", re.MULTILINE)


class KernelReport(NamedTuple):
    """What ptxas says of a kernel. spilled: bytes stored and loaded. shared: bytes of static shared memory."""

    name: str
    registers: int
    spilled: int
    shared: int


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
    return parse_report(done.stderr + done.stdout)
