"""Docstrings begin with a verb or a subject, seldom with a fragment: "Of a row in the next step." is none."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.material import REPOSITORY

FRAGMENTS = {"Of", "As", "Those", "That", "What", "How", "Whether", "Where", "Which", "By", "For", "In", "On", "With"}
FOLDERS = ("jaxinfer", "kernels/jaxinfer_kernels", "scripts", "benchmarks")
MOST = 0.02


def openings() -> list[tuple[Path, int, str]]:
    """Every docstring's file, line and text, those after an assignment included."""
    files = [file for folder in FOLDERS for file in sorted((REPOSITORY / folder).rglob("*.py"))]
    return [(file, line, text) for file in files for line, text in _docstrings(ast.parse(file.read_text("utf-8")))]


def _docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        body = body if isinstance(body, list) else []
        for place, each in enumerate(body):
            if place == 0 or isinstance(body[place - 1], ast.Assign | ast.AnnAssign):
                match each:
                    case ast.Expr(ast.Constant(str(text))):
                        yield each.lineno, text.strip()


def is_fragment(text: str) -> bool:
    return text.split(" ", 1)[0].rstrip(",:") in FRAGMENTS or text.startswith("The same")


def test_few_docstrings_are_fragments() -> None:
    every = openings()
    assert len(every) > 1000
    found = [f"{file.relative_to(REPOSITORY)}:{line}: {text[:60]}" for file, line, text in every if is_fragment(text)]
    assert len(found) <= MOST * len(every), "\n".join(found)
