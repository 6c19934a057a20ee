"""What is said of tests between two revisions."""

from pathlib import Path

import pytest
from map_tests import match, read_tests, reworded, trace

HERE, THERE = "tests/test_here.py", "tests/test_there.py"
LONG = """
    result = compute([1, 2, 3], order="ascending")
    assert result == [3, 2, 1]
    assert len(result) == 3
"""
OTHER = """
    with pytest.raises(ValueError, match="negative"):
        square_root(-1)
"""


def _tests(root: Path, functions: dict[tuple[str, str], str], cases: dict[str, list[str]]):
    sources: dict[str, str] = {}
    for (path, name), body in functions.items():
        sources[path] = sources.get(path, "import statistics\nimport numpy as np\n\n\n") + f"def {name}():{body}\n\n"
    for path, source in sources.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(source)
    return read_tests(root, [f"{path}::{name}{case}" for path, name in functions for case in cases.get(name, [""])])


def _fates(tmp_path: Path, old: dict, new: dict, old_cases: dict | None = None, new_cases: dict | None = None):
    before = _tests(tmp_path / "old", old, old_cases or {})
    after = _tests(tmp_path / "new", new, new_cases or {})
    return [(fate.state, fate.new) for fate in trace(before, match(before, after))]


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ({(HERE, "test_a"): LONG}, ("kept", f"{HERE}::test_a")),
        ({(HERE, "test_a"): OTHER, (HERE, "test_b"): LONG}, ("kept", f"{HERE}::test_a")),
        ({(THERE, "test_a"): OTHER, (HERE, "test_b"): LONG}, ("moved", f"{THERE}::test_a")),
        ({(HERE, "test_b"): OTHER, (THERE, "test_c"): LONG}, ("renamed", f"{THERE}::test_c")),
        ({(THERE, "test_c"): LONG, (HERE, "test_b"): LONG}, ("renamed", f"{HERE}::test_b")),
        ({(HERE, "test_b"): LONG.replace("compute", "sort")}, ("changed", f"{HERE}::test_b")),
        ({(HERE, "test_b"): OTHER}, ("gone", "")),
        ({}, ("gone", "")),
    ],
)
def test_what_became_of_a_test(tmp_path: Path, new: dict, expected: tuple[str, str]) -> None:
    assert _fates(tmp_path, {(HERE, "test_a"): LONG}, new) == [expected]


def test_names_of_modules_comments_and_docstrings_change_nothing(tmp_path: Path) -> None:
    old = '\n    """Old words."""\n    assert np.mean([1, 2]) == 1.5  # of both'
    new = '\n    """New words."""\n    import statistics\n    assert statistics.mean([1, 2]) == 1.5'
    assert _fates(tmp_path, {(HERE, "test_a"): old}, {(HERE, "test_b"): new}) == [("renamed", f"{HERE}::test_b")]


def test_words_that_the_code_renamed_make_no_change(tmp_path: Path) -> None:
    (old,) = _tests(tmp_path / "old", {(HERE, "test_a"): LONG}, {})
    new = _tests(tmp_path / "new", {(HERE, "test_b"): LONG.replace("compute", "sort").replace("result", "outcome")}, {})
    for words, state in (
        ([], "changed"),
        (["compute=sort"], "changed"),
        (["compute=sort", "result=outcome"], "renamed"),
    ):
        (pair,) = match([reworded(old, words)], new)
        assert (pair.state, pair.old.name) == (state, "test_a")


def test_a_test_becomes_one_other_only(tmp_path: Path) -> None:
    old = {(HERE, "test_a"): LONG, (HERE, "test_b"): LONG}
    states = [state for state, _ in _fates(tmp_path, old, {(HERE, "test_c"): LONG})]
    assert sorted(states) == ["gone", "renamed"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (["one", "three::3"], ["three::3", "one", "more"], [("moved", "one"), ("moved", "three::3")]),
        (["one", "12", "47"], ["one", "35", "60"], [("moved", "one"), ("changed", "35"), ("changed", "60")]),
        (["number two", "four"], ["number two more"], [("changed", "number two more"), ("gone", None)]),
    ],
)
def test_cases_are_found_within_their_function(tmp_path: Path, old: list, new: list, expected: list) -> None:
    cases = ({"test_a": [f"[{case}]" for case in names]} for names in (old, new))
    fates = _fates(tmp_path, {(HERE, "test_a"): LONG}, {(THERE, "test_a"): LONG}, *cases)
    assert fates == [(state, f"{THERE}::test_a[{case}]" if case else "") for state, case in expected]


@pytest.mark.parametrize(("old", "new", "state"), [("", "[one]", "changed"), ("[one]", "", "changed")])
def test_a_test_may_get_and_lose_parameters(tmp_path: Path, old: str, new: str, state: str) -> None:
    test = {(HERE, "test_a"): LONG}
    assert _fates(tmp_path, test, test, {"test_a": [old]}, {"test_a": [new]}) == [(state, f"{HERE}::test_a")]


def test_assertions_are_counted(tmp_path: Path) -> None:
    (test,) = _tests(tmp_path, {(HERE, "test_a"): LONG + OTHER}, {})
    assert test.num_assertions == 3
