"""Reads optimised HLO: which arrays are moved in device memory, and what Pallas kernels take of on-chip memory."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

MOVES = ("copy", "copy-start", "transpose", "reshape", "slice", "dynamic-slice")
"""Operations that write elements of their operand as they are. What costs nothing is a `bitcast` in optimised HLO."""

_TRANSPARENT = ("bitcast", "tuple", "get-tuple-element")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(([^)]*)\)?(.*)$")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_ELSEWHERE = re.compile(r"S\([1-9]\d*\)")
_CALLED = re.compile(r"calls=%?([\w.\-]+)")
_CALLS = re.compile(
    r"(?:calls|to_apply|body|condition|true_computation|false_computation|branch_computations)=(%?[\w.\-]+|\{[^}]*\})"
)
_NAME = re.compile(r"[\w.\-]+")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_PASSES = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_SCOPED = re.compile(r'"used_scoped_memory_configs":\[([^\]]*)\]')
_SCOPE = re.compile(r'"memory_space":"(\d+)"[^}]*"size":"(\d+)"')


class Instruction(NamedTuple):
    """One line. result: its type. size: bytes of the first array of the result. called: of a fusion. rest: what stands
    behind the operands."""

    name: str
    operation: str
    result: str
    size: int
    operands: tuple[str, ...]
    root: bool
    called: str | None
    rest: str


class Move(NamedTuple):
    """A copy, in whatever form, that is written to device memory."""

    name: str
    operation: str
    result: str
    size: int


def read_computations(text: str) -> dict[str, list[Instruction]]:
    """Instructions of every computation of a module, by its name."""
    computations: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = computations.setdefault(header[1], [])
        elif found := _INSTRUCTION.match(line):
            current.append(_instruction(found))
    return computations


def moves(text: str, sizes: Collection[int]) -> list[Move]:
    """Moves of arrays of one of `sizes` bytes to device memory; moves to on-chip memory are not among them.

    Of a fusion only its results count: what happens before them stays in registers, fusions inside of it, too.
    """
    computations = read_computations(text)
    fused = {i.called for body in computations.values() for i in body if i.operation == "fusion"}
    found, waiting = [], [body for name, body in computations.items() if name not in fused]
    while waiting:
        for instruction in waiting.pop():
            if instruction.operation == "fusion":
                waiting.append(list(_roots(computations.get(instruction.called or "", []))))
            elif instruction.operation in MOVES and instruction.size in sizes and _in_device_memory(instruction.result):
                found.append(Move(*instruction[:4]))
    return found


def passes(computations: Mapping[str, Sequence[Instruction]]) -> dict[str, int]:
    """How often each computation runs for each run of the module, as far as loops go: the body of a loop, and what it
    calls, once for each of its passes; of a loop whose passes are not fixed, once."""
    callers: dict[str, list[tuple[str, int]]] = {}
    for name, body in computations.items():
        for instruction in body:
            count = _passes(instruction, computations) if instruction.operation == "while" else 1
            for called in _called(instruction):
                callers.setdefault(called, []).append((name, count))

    @cache
    def runs(name: str) -> int:
        return max((count * runs(caller) for caller, count in callers.get(name, ())), default=1)

    return {name: runs(name) for name in computations}


def _called(instruction: Instruction) -> Iterator[str]:
    for named in _CALLS.findall(instruction.rest):
        yield from _NAME.findall(named)


def _passes(loop: Instruction, computations: Mapping[str, Sequence[Instruction]]) -> int:
    """XLA for a TPU does not tell: there it is the number that the condition compares with."""
    if told := _PASSES.search(loop.rest):
        return int(told[1])
    named = _CONDITION.search(loop.rest)
    condition = [*computations.get(named[1], ())] if named else []
    condition += [one for own in condition if own.root for one in computations.get(own.called or "", ())]
    compares = any(one.root and one.operation == "compare" and "direction=LT" in one.rest for one in condition)
    bounds = [one.operands[0] for one in condition if one.operation == "constant" and one.operands]
    return int(bounds[0]) if compares and len(bounds) == 1 and bounds[0].isdigit() else 1


def arrays(result: str) -> list[tuple[str, int]]:
    """Each array of a result's type, without its layout, and its bytes."""
    return [(f"{kind}[{shape}]", _bytes(kind, shape)) for kind, shape, _ in _ARRAY.findall(result)]


def scoped_memory(text: str) -> dict[int, int]:
    """Most bytes that one custom call takes of each on-chip memory, by XLA's number of it: 1 is VMEM."""
    most: dict[int, int] = {}
    for configs in _SCOPED.findall(text):
        for space, size in _SCOPE.findall(configs):
            most[int(space)] = max(most.get(int(space), 0), int(size))
    return most


def _instruction(found: re.Match[str]) -> Instruction:
    root, name, result, operation, operands, rest = found.groups()
    names = tuple(re.findall(r"%([\w.\-]+)", operands)) or tuple(
        part.split()[-1] for part in operands.split(",") if part
    )
    called = _CALLED.search(rest)
    array = _ARRAY.search(result)
    size = _bytes(array[1], array[2]) if array else 0
    return Instruction(name, operation, result, size, names, bool(root), called[1] if called else None, rest)


def _bytes(kind: str, dimensions: str) -> int:
    count = 1
    for size in filter(None, dimensions.split(",")):
        count *= int(size)
    return -(-count * _bits(kind) // 8)


def _bits(kind: str) -> int:
    """Bits of an element: of pred 8, of f8e4m3fn 8, of bf16 16, of s4 4; 0 for a token."""
    digits = re.search(r"\d+", kind)
    return 8 if kind == "pred" else int(digits[0]) if digits else 0


def _roots(body: list[Instruction]) -> Iterator[Instruction]:
    """What a fusion writes, seen through operations that write nothing."""
    by_name = {instruction.name: instruction for instruction in body}
    waiting = [instruction for instruction in body if instruction.root]
    while waiting:
        instruction = waiting.pop()
        if instruction.operation in _TRANSPARENT:
            waiting += [by_name[name] for name in instruction.operands if name in by_name]
        else:
            yield instruction


def _in_device_memory(result: str) -> bool:
    """True where the first array of a result, which is the destination, lies in memory space 0, i.e. in HBM."""
    array = _ARRAY.search(result)
    return array is not None and not _ELSEWHERE.search(array[3] or "")
