"""Prints what depends on the files that changed since a revision, a path a line: test files, and programs that CI runs
as checks. `.venv/bin/python scripts/changed_tests.py REV`; `.ci/run --changed-since REV` uses it.

A file depends on what it imports, however far away. A test that starts processes, which may import anything, depends on
all of the product; every test depends on the settings of the project. A document has tests of its own; another file
that is not Python belongs to the modules of its folder.
"""

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from tests.house.imports import Module, inside, read_module

REPOSITORY = Path(__file__).resolve().parent.parent
ROOTS = ("jaxinfer", "kernels", "tests", "benchmarks", "scripts")
"""Folders with Python; what lies in `kernels` and `scripts` is imported from there."""

IMPORTED_FROM = ("kernels/", "scripts/")
SETTINGS = (
    *("pyproject.toml", "constraints.txt", "scripts/environment.sh", "scripts/test", ".ci/"),
    *("tests/conftest.py", "tests/draws.py", "tests/few_programs.py", "tests/turns.py"),
)
PRODUCT = ("jaxinfer", "jaxinfer_kernels")
STARTS_PROCESSES = ("subprocess", "asyncio.subprocess", "asyncio.create_subprocess_exec", "multiprocessing")
ABOUT_DOCUMENTS = ("tests/docs/", "tests/house/")
CHECKS = ("scripts/check_programs.py", "kernels/jaxinfer_kernels/check/__main__.py")


def main(revision: str) -> None:
    modules = {path: _read(path) for path in _files() if path.endswith(".py")}
    for path in selected(modules, _changed(revision)):
        print(path)


def selected(modules: Mapping[str, Module], changed: Iterable[str]) -> list[str]:
    """Paths of the tests and checks among `modules`, given by path, that depend on the changed files."""
    wanted = [path for path in modules if PurePosixPath(path).name.startswith("test_") or path in CHECKS]
    changed = list(changed)
    if any(path.startswith(SETTINGS) for path in changed):
        return wanted
    touched = {name for path in changed if not path.endswith(".md") for name in _touched(path, modules)}
    has_document = any(path.endswith(".md") for path in changed)
    by_name = {module.name: module for module in modules.values()}
    return [
        path
        for path in wanted
        if (has_document and path.startswith(ABOUT_DOCUMENTS)) or _reached(modules[path], by_name) & touched
    ]


def _reached(start: Module, modules: Mapping[str, Module]) -> set[str]:
    """Names of the modules that `start` imports, directly or not, and its own."""
    found, queue = {start.name}, [start]
    for module in queue:
        names = _imported(module, modules)
        if not inside(module.name, PRODUCT) and any(inside(target, STARTS_PROCESSES) for target in module.all):
            names |= {name for name in modules if inside(name, PRODUCT)}
        queue += [modules[name] for name in names - found]
        found |= names
    return found


def _imported(module: Module, modules: Mapping[str, Module]) -> set[str]:
    """Importing a.b.c imports the packages a and a.b as well; of `a.b.name` only a.b may be a module."""
    parts = (target.split(".") for target in module.all)
    names = {".".join(words[:end]) for words in parts for end in range(1, len(words) + 1)}
    return names & modules.keys()


def _touched(path: str, modules: Mapping[str, Module]) -> list[str]:
    """Modules that a changed file may change: itself, or all of the nearest folder that has any."""
    if path in modules:
        return [modules[path].name]
    for folder in PurePosixPath(path).parents[:-1]:
        if names := [module.name for other, module in modules.items() if PurePosixPath(other).parent == folder]:
            return names
    return []


def _read(path: str) -> Module:
    dotted = path.removesuffix(".py")
    for prefix in IMPORTED_FROM:
        dotted = dotted.removeprefix(prefix)
    name = dotted.replace("/", ".")
    is_package = name.endswith(".__init__")
    source = (REPOSITORY / path).read_text(encoding="utf-8")
    return read_module(source, name.removesuffix(".__init__"), is_package)


def _files() -> list[str]:
    listed = _git("ls-files", "--cached", "--others", "--exclude-standard", *ROOTS)
    return [path for path in listed if (REPOSITORY / path).is_file()]  # some may have been deleted


def _changed(revision: str) -> list[str]:
    """Files of the working tree that differ from where it left the revision, new and deleted ones too."""
    (base,) = _git("merge-base", revision, "HEAD")
    return [*_git("diff", "--name-only", "--no-renames", base), *_git("ls-files", "--others", "--exclude-standard")]


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return [line for line in done.stdout.splitlines() if line]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
