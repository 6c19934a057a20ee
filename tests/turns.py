"""Long tests take turns in CI: with JAXINFER_TEST_TURNS=4 one of four runs, by the first seed, which follows the
commit; the others run in other commits."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

from tests.draws import first_seed


def turns() -> int:
    return int(os.environ.get("JAXINFER_TEST_TURNS") or 1)


def split_by_turn(tests: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Those that run, and the long ones whose turn it is not: of cases of one test, neighbours have different turns."""
    whose_turn, waiting, seen = [], [], 0
    for test in tests:
        is_long = test.get_closest_marker("long") is not None
        seen += is_long
        (waiting if is_long and (seen + first_seed()) % turns() else whose_turn).append(test)
    return whose_turn, waiting


def one_of(count: int, cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test that takes seconds for each: one of so many runs by default, the others are `long`."""
    marks = [(), *[pytest.mark.long] * (count - 1)]
    values = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*value, marks=marks[place % count]) for place, value in enumerate(values)]
