"""Which long tests a commit runs."""

import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.material import REPOSITORY
from tests.turns import one_of, split_by_turn

pytestmark = pytest.mark.smoke

CI = (REPOSITORY / ".ci" / "run").read_text()


class Test:
    """What a collected test has."""

    __test__ = False

    def __init__(self, name: str, long: bool, **kwargs: str):
        self.name, self.long, self.kwargs = name, long, kwargs

    def get_closest_marker(self, name: str) -> object | None:
        return self if name == "long" and self.long else None


SHORT = [Test(f"short {number}", long=False) for number in range(4)]
LONG = [Test(f"long {number}", long=True) for number in range(7)]
ALL: list[Any] = [*SHORT[:2], *LONG[:3], *SHORT[2:], *LONG[3:]]


@pytest.mark.parametrize("first", [0, 1, 66136931])
@pytest.mark.parametrize("turns", [1, 2, 3, 7, 9])
def test_each_long_one_runs_with_one_of_so_many_seeds(turns: int, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXINFER_TEST_TURNS", str(turns))
    ran: list[Any] = []
    for seed in range(first, first + turns):
        monkeypatch.setenv("JAXINFER_TEST_SEED", str(seed))
        now, waiting = split_by_turn(ALL)
        assert set(now) | set(waiting) == set(ALL)
        assert not set(now) & set(waiting)
        assert [test for test in ALL if test in now] == now
        assert set(SHORT) <= set(now)
        ran += [test for test in now if test in LONG]
    assert sorted(test.name for test in ran) == [test.name for test in LONG]


@pytest.mark.parametrize("first", range(3))
def test_those_of_a_group_run_together(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXINFER_TEST_TURNS", "3")
    tests: list[Any] = [Test(f"{group}{number}", True, group=group) for number in range(4) for group in "abcd"]
    ran: list[str] = []
    for seed in range(first, first + 3):
        monkeypatch.setenv("JAXINFER_TEST_SEED", str(seed))
        now = [test.name for test in split_by_turn(tests)[0]]
        assert all(sum(name[0] == group for name in now) in (0, 4) for group in "abcd")
        ran += now
    assert sorted(ran) == sorted(test.name for test in tests)


def test_all_run_where_nobody_asks_for_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAXINFER_TEST_TURNS", raising=False)
    assert split_by_turn(ALL) == (ALL, [])


def test_pytest_asks_for_them() -> None:
    assert _collected("test_cases_of_one_test", "-m", "", JAXINFER_TEST_TURNS="2") == ["a-1]", "c-3]", "d-4]"]


def test_few_cases_run_by_default() -> None:
    chosen, every = _collected("test_many_cases", "-m", "not long"), _collected("test_many_cases", "-m", "")
    assert (len(chosen), len(every)) == (3, 9)
    assert set(chosen) <= set(every)


def test_the_order_is_drawn_by_the_seed() -> None:
    orders = [
        _collected("test_many_cases", "-m", "", JAXINFER_TEST_SHUFFLE="1", JAXINFER_TEST_SEED=seed) for seed in "121"
    ]
    assert orders[0] == orders[2]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == _collected("test_many_cases", "-m", "")


def _collected(name: str, *options: str, **variables: str) -> list[str]:
    """Cases of a test below, in their order."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *options, f"{__file__}::{name}"]
    own = {"JAXINFER_TEST_SEED": "0", "JAXINFER_TEST_SHUFFLE": "", "JAXINFER_TEST_TURNS": "1"}
    environment = os.environ | own | variables
    listed = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    return [line.partition("[")[2] for line in listed.splitlines() if "::" in line]


@pytest.mark.few(3)
@pytest.mark.parametrize("letter", range(3))
@pytest.mark.parametrize("number", range(3))
def test_many_cases(letter: int, number: int) -> None:
    """Three by default."""


@pytest.mark.parametrize(("letter", "number"), one_of(3, zip("abcd", range(1, 5), strict=True)))
def test_cases_of_one_test(letter: str, number: int) -> None:
    """Two by default, `b` and `c` long."""
    assert letter == " abcd"[number]


@pytest.mark.parametrize(("step", "key"), [("compiled", "device"), ("of meshes", "host_topology")])
def test_every_target_has_turns(step: str, key: str) -> None:
    named = re.search(rf'compiled "step programs,? {step}" "([\w ]+)"', CI)
    kept = {path.stem for path in (REPOSITORY / "configs" / "targets").glob("*.yaml") if key in path.read_text()}
    assert named is not None
    assert sorted(named[1].split()) == sorted(kept)
