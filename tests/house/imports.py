"""Reads the imports of a source tree without running it."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class Module(NamedTuple):
    """What one module imports, as dotted names. `eager` runs when the module is imported; `all` also later."""

    name: str
    eager: frozenset[str]
    all: frozenset[str]


def read_tree(root: Path, package: str) -> dict[str, Module]:
    """Every module of `package`, which lies in the folder `root`, by its dotted name."""
    modules = {}
    for file in sorted((root / package).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = read_module(file.read_text(encoding="utf-8"), name, is_package)
    return modules


def read_module(source: str, name: str, is_package: bool = False) -> Module:
    """The imports of one module's source text. `if TYPE_CHECKING:` is left out: it never runs."""
    package = name if is_package else name.rpartition(".")[0]
    eager, late = set(), set()
    for node, is_eager in _imports(ast.parse(source).body, True):
        (eager if is_eager else late).update(_targets(node, package))
    return Module(name, frozenset(eager), frozenset(eager | late))


def _imports(body: Iterable[ast.AST], eager: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, eager
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            yield from _imports(node.orelse, eager)
        else:
            runs_later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports(ast.iter_child_nodes(node), eager and not runs_later)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _targets(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        above = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*above, base] if base else above)
    # Of `from a import b` the name a.b stands for both: it lies in a, and b may be a module.
    yield from (f"{base}.{alias.name}" for alias in node.names)


def inside(name: str, packages: Iterable[str]) -> bool:
    """True where a dotted name is one of `packages` or lies in one of them."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def chain_to(modules: Mapping[str, Module], start: str, forbidden: Iterable[str]) -> list[str] | None:
    """The shortest chain of eager imports from module `start` to a forbidden package, or None where there is none.

    Importing a.b.c imports the packages a and a.b as well.
    """
    targets = tuple(forbidden)
    came_from: dict[str, str | None] = {start: None}
    queue = [start]
    for name in queue:
        for target in sorted(_loaded(modules, name)):
            if inside(target, targets):
                return [*_path(came_from, name), target]
            if target in modules and target not in came_from:
                came_from[target] = name
                queue.append(target)
    return None


def _loaded(modules: Mapping[str, Module], name: str) -> set[str]:
    names = modules[name].eager | {name}
    return {".".join(parts[:end]) for parts in (n.split(".") for n in names) for end in range(1, len(parts) + 1)}


def _path(came_from: Mapping[str, str | None], name: str) -> list[str]:
    path: list[str] = []
    step: str | None = name
    while step is not None:
        path.append(step)
        step = came_from[step]
    return path[::-1]


def strays(modules: Mapping[str, Module], package: str, known: Iterable[str], allowed: Iterable[str]) -> list[str]:
    """Imports in `package`, late ones too, of a package among `known` that is neither itself nor `allowed`."""
    known, allowed = tuple(known), (package, *allowed)
    found = []
    for module in modules.values():
        if inside(module.name, [package]):
            bad = (t for t in module.all if inside(t, known) and not inside(t, allowed))
            found += [f"{module.name} imports {target}" for target in sorted(bad)]
    return found
