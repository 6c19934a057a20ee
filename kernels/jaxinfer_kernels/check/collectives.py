"""What the devices of a mesh send each other in a program, read from its optimised HLO, against what they may send."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from jaxinfer_kernels.check.hlo import arrays, passes, read_computations
from jaxinfer_kernels.check.sizes import size

KINDS = ("all-reduce", "all-gather", "all-to-all", "ragged-all-to-all", "reduce-scatter", "collective-permute")
_NAMES = {name: kind for kind in KINDS for name in (kind, f"{kind}-done")}
"""A collective that runs beside others is a start and a `done`, whose result is the collective's."""
_MOST_LINES = 4


class Collective(NamedTuple):
    """kind: of KINDS. array: type and shape of what a device gets, as `bf16[16,4096]`; size: its bytes."""

    kind: str
    array: str
    size: int

    def __str__(self) -> str:
        return f"{self.kind} {self.array}"


class Exchange(NamedTuple):
    """What the devices of a mesh may send each other in a program.

    expected: how often each collective is there, by its text, as `all-reduce bf16[16,4096]`. small: bytes that others
    may give a device each.
    """

    expected: tuple[tuple[str, int], ...] = ()
    small: int = 0


def read_collectives(text: str) -> list[Collective]:
    """Collectives of a module, as often as they run: those of a loop once for each of its passes, where these are
    fixed. One of several arrays is as many."""
    computations = read_computations(text)
    repeated = passes(computations)
    return [
        Collective(kind, array, each)
        for name, body in computations.items()
        for instruction in body
        if (kind := _NAMES.get(instruction.operation))
        for array, each in arrays(instruction.result)
        for _ in range(repeated.get(name, 1))
    ]


def exchange_problems(exchange: Exchange, found: Sequence[Collective]) -> list[str]:
    """Collectives that are there too often or too rarely, and those that are too large."""
    expected, counts = dict(exchange.expected), Counter(map(str, found))
    wrong = [text for text, count in expected.items() if counts[text] != count]
    large = {str(one): one.size for one in found if str(one) not in expected and one.size > exchange.small}
    limit = f"{size(exchange.small)} is allowed" if exchange.small else "nothing else is expected"
    return [
        *(f"{text}: {counts[text]} times, {expected[text]} expected" for text in wrong),
        *(f"{text}: {counts[text]} times, {size(each)} each; {limit}" for text, each in large.items()),
    ]


def summary(found: Sequence[Collective]) -> tuple[str, ...]:
    """A line each collective with how often it is there, or where there are many, a line each kind."""
    counts = Counter(found)
    if len(counts) <= _MOST_LINES:
        return tuple(f"{count} {one}, {size(one.size)} each" for one, count in counts.items())
    lines = []
    for kind in dict.fromkeys(one.kind for one in found):
        sizes = [one.size for one in found if one.kind == kind]
        lines.append(f"{len(sizes)} {kind}, {size(sum(sizes))} in all, {size(max(sizes))} at most")
    return tuple(lines)
