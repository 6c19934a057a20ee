"""Long tests take turns in CI: with JAXINFER_TEST_TURNS=4 one of four runs, by the first seed, which follows the
commit's hash. Turns are drawn so: a test has none in ten commits with a chance of 6 %."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

from tests.draws import first_seed


def turns() -> int:
    return int(os.environ.get("JAXINFER_TEST_TURNS") or 1)


def split_by_turn(tests: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Those that run, and the long ones whose turn it is not: neighbours have different turns, but for those that are
    marked `long(group=...)`, since they share what takes so long."""
    whose_turn, waiting, places = [], [], dict[Any, int]()
    for number, test in enumerate(tests):
        marker = test.get_closest_marker("long")
        if marker is None:
            whose_turn.append(test)
            continue
        place = places.setdefault(marker.kwargs.get("group", number), len(places) + 1)
        (waiting if (place + first_seed()) % turns() else whose_turn).append(test)
    return whose_turn, waiting


def one_of(count: int, cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test that takes seconds for each: one of so many runs by default, the others are `long`. cases:
    values of one parameter, or tuples of several."""
    marks = [(), *[pytest.mark.long] * (count - 1)]
    values = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*value, marks=marks[place % count]) for place, value in enumerate(values)]
