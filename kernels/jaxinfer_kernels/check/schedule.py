"""What the TPU compiler left in a folder about each kernel: its schedule's spills, and its scalar memory.

A schedule is a list of bundles, one a cycle. The compiler writes how many instructions of each unit a bundle has.
"""

import re
from pathlib import Path
from typing import NamedTuple

DUMPED = "final_hlo-static-per-bundle-utilization|pre-finalize-registers-and-allocations"
"""The stages of compilation that are read here."""
MOST_SPILLING = 0.25
"""The share of a kernel's bundles that may store a spilled register.

Those that keep products of the MXU in flight store in up to one bundle of five, beside other work, at the places where
the compiler overlaps most. One whose values do not fit by far stores in every third, and waits for that.
"""

_REGISTER_BYTES = 8 * 128 * 4
_FILE = re.compile(r"^\d+-(.+)-\d+-(" + DUMPED + r")\.txt$")
_KERNEL = re.compile(r'%?([\w.\-]+) = [^\n]*? custom-call\([^\n]*custom_call_target="tpu_custom_call"')
_SMEM = re.compile(r"^\s*#allocation\d+ \[.*space=smem, size = (0x[0-9a-f]+), scoped")


class Schedule(NamedTuple):
    """A Pallas kernel as it was scheduled. stores, loads: of spilled vector registers, as often as the text has them.

    smem: bytes of scalar memory.
    """

    name: str
    bundles: int
    stores: int
    loads: int
    smem: int

    @property
    def spilled(self) -> int:
        """Bytes stored and loaded."""
        return (self.stores + self.loads) * _REGISTER_BYTES

    @property
    def problem(self) -> str:
        """What is wrong with it, or nothing."""
        if self.stores <= MOST_SPILLING * self.bundles:
            return ""
        return f"{self.name} spills: {self.stores} of its {self.bundles} bundles store a register"


def read_schedules(folder: Path, program: str) -> list[Schedule]:
    """The Pallas kernels of a program, given as optimised HLO, of which something lies in `folder`.

    Of kernels that are alike the compiler schedules one. Raises FileNotFoundError where there is nothing of any.
    """
    names, units, smem = set(_KERNEL.findall(program)), {}, {}
    for file in sorted(folder.rglob("*.txt")):
        if (found := _FILE.match(file.name)) and found[1] in names:
            if found[2].startswith("final"):
                units[found[1]] = read_units(file.read_text())
            else:
                smem[found[1]] = sum(int(size[1], 16) for size in map(_SMEM.match, file.open()) if size)
    if names and not units:
        raise FileNotFoundError(f"the TPU compiler left no schedule of {', '.join(sorted(names))}")
    return [
        Schedule(name, len(rows), sum(row["VSTORE:SPILL"] for row in rows), sum(row["VLOAD:FILL"] for row in rows),
                 smem.get(name, 0))
        for name, rows in units.items()
    ]  # fmt: skip


def read_units(text: str) -> list[dict[str, int]]:
    """For each bundle how many instructions it has of each unit. Raises ValueError for what is no such list."""
    lines = text.splitlines()
    try:
        names, start = lines[1].split(", "), lines.index("== UTILIZATION:")
        return [dict(zip(names, map(int, line.split()), strict=True)) for line in lines[start + 1 :] if line]
    except (IndexError, ValueError) as error:
        raise ValueError(f"the TPU compiler's list of units has another form: {text[:200]!r}") from error
