"""Which tests run, and in which order.

Of a test marked `few(n)` n cases run by default; the others are long. Long tests take turns in CI: with
JAXINFER_TEST_TURNS=4 one of four runs, by the first seed, which follows the commit's hash. Turns are drawn so: a test
has none in ten commits with a chance of 6 %. With JAXINFER_TEST_SHUFFLE=1 the order follows the first seed, too.
"""

import os
import random
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

from tests.draws import first_seed


def turns() -> int:
    return int(os.environ.get("JAXINFER_TEST_TURNS") or 1)


def mark_long_cases(tests: list[pytest.Item]) -> None:
    """Mark those cases of `few(n)` tests as long that do not run by default: all but n, drawn by their names."""
    cases = defaultdict[tuple[Any, str], list[pytest.Item]](list)
    for test in tests:
        if test.get_closest_marker("few") and not test.get_closest_marker("long"):
            cases[test.parent, test.name.partition("[")[0]].append(test)
    for every in cases.values():
        marker = every[0].get_closest_marker("few")
        assert marker is not None
        (count,) = marker.args
        # By a digest: cases of several parameters at even distances would all have one value of one of them.
        for test in sorted(every, key=lambda each: zlib.crc32(each.name.encode()))[count:]:
            test.add_marker(pytest.mark.long(**marker.kwargs))


def shuffled(tests: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in an order that the first seed draws: modules, and in each its tests."""
    if not os.environ.get("JAXINFER_TEST_SHUFFLE"):
        return tests
    modules, draws = defaultdict[str, list[pytest.Item]](list), random.Random(first_seed())
    for test in tests:
        modules[test.nodeid.partition("::")[0]].append(test)
    groups = list(modules.values())
    draws.shuffle(groups)
    for group in groups:
        draws.shuffle(group)
    return [test for group in groups for test in group]


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
