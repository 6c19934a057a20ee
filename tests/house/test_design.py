"""Every test that jaxinfer/DESIGN.md names beside a rule of the edge exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_TABLE = "| what happened elsewhere | our rule | test |"


def _rows() -> list[tuple[str, str]]:
    """(what happened, tests) of every row."""
    text = (ROOT / "jaxinfer" / "DESIGN.md").read_text()
    lines = text[text.index(_TABLE) :].splitlines()[2:]
    table = lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    return [(cells[0], cells[2]) for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in table)]


@pytest.mark.parametrize(("rule", "tests"), _rows(), ids=lambda value: value[:30])
def test_the_tests_of_a_rule_exist(rule: str, tests: str) -> None:
    if tests.startswith("*planned"):
        return
    named = re.findall(r"`([\w/]+)`(?::? ?)([\w, ]*)", tests)
    assert named, f"no test is named for: {rule}"
    for file, names in named:
        path = ROOT / "tests" / re.sub(r"([^/]+)$", r"\1.py", file)
        functions = re.findall(r"def test_(\w+)", path.read_text())
        for name in filter(None, (part.strip() for part in names.split(","))):
            assert any(function.startswith(name) for function in functions), f"{path}: no test_{name}"
