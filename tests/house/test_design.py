"""The documents agree with the tree: the tests and paths that they name exist; the design stays readable."""

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from itertools import takewhile

import pytest

from tests.material import REPOSITORY

DESIGN = "jaxinfer/DESIGN.md"
PAGES = tuple(f"jaxinfer/design/{page.name}" for page in sorted((REPOSITORY / "jaxinfer" / "design").glob("*.md")))
DESIGN_DOCUMENTS = (DESIGN, *PAGES, "jaxinfer/DECISIONS.md", "jaxinfer/ROADMAP.md")
FOLDERS = ("jaxinfer", "kernels", "tests", "benchmarks", "configs", "scripts", ".ci")
MAX_WIDTH = 120
MAX_DESIGN_LINES = 300
MAX_PAGE_LINES = 200
_TABLE = "| what happened elsewhere | our rule | test |"

_EXTENSIONS = r"\.(?:py|pyi|md|ya?ml|json|toml|txt|txtpb|proto|mjs|csv|svg|npz|safetensors)"
_PATH = re.compile(rf"\.?[\w-][\w.-]*(?:(?:/[\w.-]+)+/?|/|{_EXTENSIONS})")
NO_PATHS = (
    "[A-Z]*/*",  # hub ids
    "owner/name",
    "path/to/*",
    "*NAME*",
    "constraints/ENVIRONMENT.txt",
    ".venv/*",  # made by scripts/test
    "extra-openai-models.yaml",  # a user's file of the client llm
    "utils.py",  # which must not exist
)
"""What looks like a path of the repository and is none."""


def _read(document: str) -> str:
    return (REPOSITORY / document).read_text(encoding="utf-8")


def _rows() -> list[tuple[str, str]]:
    """(what happened, tests) of every row of the rules of the edge."""
    text = _read("jaxinfer/design/serving.md")
    lines = text[text.index(_TABLE) :].splitlines()[2:]
    table = list(takewhile(lambda line: line.startswith("|"), lines))
    return [(cells[0], cells[2]) for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in table)]


@pytest.mark.parametrize(("rule", "tests"), _rows(), ids=lambda value: value[:30])
def test_the_tests_of_a_rule_exist(rule: str, tests: str) -> None:
    named = re.findall(r"`([\w/]+)`(?::? ?)([\w, ]*)", tests)
    assert named, f"no test is named for: {rule}"
    for file, names in named:
        path = REPOSITORY / "tests" / f"{file}.py"
        functions = re.findall(r"def test_(\w+)", path.read_text())
        for name in filter(None, (part.strip() for part in names.split(","))):
            assert any(function.startswith(name) for function in functions), f"{path}: no test_{name}"


def documents() -> list[str]:
    """The design, README.md, CONTRIBUTING.md, and the README of every package and folder."""
    found = (file for folder in FOLDERS for file in (REPOSITORY / folder).rglob("README.md"))
    return [*DESIGN_DOCUMENTS, "README.md", "CONTRIBUTING.md", *sorted(str(f.relative_to(REPOSITORY)) for f in found)]


@cache
def _tails() -> frozenset[str]:
    """Every file and folder of the repository by its last one, two, three … names: `plan.py`, `step/plan.py`."""
    found = [path for path in REPOSITORY.iterdir() if path.is_file()]
    # By their files: what is left of a folder that is gone holds compiled Python at most.
    found += [p for folder in FOLDERS for p in (REPOSITORY / folder).rglob("*") if p.is_file() and p.suffix != ".pyc"]
    files = [path.relative_to(REPOSITORY).parts for path in found]
    paths = {parts[:end] for parts in files for end in range(1, len(parts) + 1)}
    return frozenset("/".join(parts[start:]) for parts in paths for start in range(len(parts)))


def _named_paths(text: str) -> Iterator[str]:
    """What stands in backticks outside of code blocks and looks like a path, words of commands included."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for span in re.findall(r"`([^`]+)`", prose):
        for word in span.split():
            path = word.removeprefix("./").rstrip(",;:")
            if _PATH.fullmatch(path) and not any(fnmatch(path, pattern) for pattern in NO_PATHS):
                yield path


def missing_paths(text: str) -> list[str]:
    """Paths that a document names and that no file or folder of the repository ends with."""
    ends = {path: path.rstrip("/") for path in _named_paths(text)}
    return sorted(path for path, end in ends.items() if not {end, f"{end}.py"} & _tails())


@pytest.mark.parametrize("document", documents())
def test_paths_that_a_document_names_exist(document: str) -> None:
    assert missing_paths(_read(document)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`jaxinfer/engine/step/plan.py`, `step/plan.py`, `plan.py`, `engine/kv/`, `tests/house`", []),
        ("`engine/plan.py`", ["engine/plan.py"]),
        ("`jaxinfer/speculative/`", ["jaxinfer/speculative/"]),
        ("`planned.yaml`", ["planned.yaml"]),
        ("`./scripts/test tests/nowhere -x`", ["tests/nowhere"]),
        ("`/metrics`, `Qwen/Qwen3-0.6B`, `--flag`, `server.run`, `32 / 8`", []),
        ("```\njaxinfer/nowhere.py\n```", []),
    ],
)
def test_a_path_that_is_missing_is_found(text: str, expected: list[str]) -> None:
    assert missing_paths(text) == expected


@pytest.mark.parametrize("document", DESIGN_DOCUMENTS)
def test_lines_fit_a_screen(document: str) -> None:
    """Rows of tables cannot be wrapped."""
    lines = [line for line in _read(document).splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > MAX_WIDTH] == []


def test_the_design_is_short_and_lists_its_pages() -> None:
    text = _read(DESIGN)
    assert len(text.splitlines()) <= MAX_DESIGN_LINES
    listed = re.findall(r"^\| \[[^]]+\]\((design/[\w-]+\.md)\) \|", text, re.MULTILINE)
    assert sorted(f"jaxinfer/{page}" for page in listed) == sorted(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_says_what_it_describes(page: str) -> None:
    text = _read(page)
    assert len(text.splitlines()) <= MAX_PAGE_LINES
    assert re.match(r"# .+\n\nThis page describes ", text)


def _anchors(document: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _read(document), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _leads_somewhere(document: str, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (REPOSITORY / document).parent.joinpath(path).resolve() if path else REPOSITORY / document
    if not target.exists() or not anchor or target.suffix != ".md":
        return target.exists()
    return anchor in _anchors(str(target.relative_to(REPOSITORY)))


@pytest.mark.parametrize("document", documents())
def test_links_lead_to_files_and_headings(document: str) -> None:
    links = re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", re.sub(r"`[^`]*`", "", _read(document)))
    assert [link for link in links if not _leads_somewhere(document, link)] == []
