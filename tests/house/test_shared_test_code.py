"""What several tests use lies in modules of its own: nothing imports a module of tests."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.house.imports import Module, read_tree
from tests.material import REPOSITORY

pytestmark = pytest.mark.smoke


def imported_tests(modules: Mapping[str, Module]) -> Iterator[str]:
    """Each import of a module `test_*` of the package `tests`, or of a name in one."""
    for module in modules.values():
        for target in sorted(module.typed):
            package, *inner = target.split(".")
            if package == "tests" and any(name.startswith("test_") for name in inner):
                yield f"{module.name} imports {target}"


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "scripts"])
def test_no_module_of_tests_is_imported(folder: str) -> None:
    modules = read_tree(REPOSITORY, folder)
    assert modules
    assert list(imported_tests(modules)) == []


@pytest.mark.parametrize(
    "source",
    [
        "from tests.a.test_b import C",
        "from tests.a import test_b",
        "import tests.a.test_b",
        "from .test_b import C",
        "from . import test_b",
        "from ..a.test_b import C",
        "def f():\n    from tests.a.test_b import C",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tests.a.test_b import C",
    ],
)
def test_an_import_of_tests_is_found(tmp_path: Path, source: str) -> None:
    folder = tmp_path / "tests" / "a"
    folder.mkdir(parents=True)
    (folder / "c.py").write_text(source)
    assert [found.split(" imports ")[0] for found in imported_tests(read_tree(tmp_path, "tests"))] == ["tests.a.c"]


def test_other_imports_are_fine(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("import aiohttp.test_utils\nfrom tests.b import C\nfrom .c import D")
    assert list(imported_tests(read_tree(tmp_path, "tests"))) == []
