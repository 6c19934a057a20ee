"""A small set of rows in which every pair of values of any two parameters occurs."""

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any


def pairwise(table: Mapping[str, Sequence[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Rows of one value a parameter, greedily chosen; every pair of values of two parameters is in one of them."""
    rng = random.Random(seed)
    names = list(table)
    missing = {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(names)), 2)
        for i in range(len(table[names[a]]))
        for j in range(len(table[names[b]]))
    }
    rows = []
    while missing:
        fixed = _start(min(missing))
        best = max((_complete(fixed, names, table, rng) for _ in range(30)), key=lambda row: len(_pairs(row) & missing))
        missing -= _pairs(best)
        rows.append({name: table[name][index] for name, index in zip(names, best, strict=True)})
    return rows


def _start(pair: tuple[int, int, int, int]) -> dict[int, int]:
    a, i, b, j = pair
    return {a: i, b: j}


def _complete(
    fixed: dict[int, int], names: Sequence[str], table: Mapping[str, Sequence[Any]], rng: random.Random
) -> tuple[int, ...]:
    return tuple(fixed.get(at, rng.randrange(len(table[name]))) for at, name in enumerate(names))


def _pairs(row: Sequence[int]) -> set[tuple[int, int, int, int]]:
    return {(a, row[a], b, row[b]) for a, b in itertools.combinations(range(len(row)), 2)}
