"""Reads the imports of a source tree without running it."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal, NamedTuple

When = Literal["at once", "later", "never"]


class Module(NamedTuple):
    """What one module imports, as dotted names.

    eager: when the module is imported. all: also later. typed: also under `if TYPE_CHECKING:`, which never runs.
    """

    name: str
    eager: frozenset[str]
    all: frozenset[str]
    typed: frozenset[str]


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
    """The imports of one module's source text."""
    package = name if is_package else name.rpartition(".")[0]
    found: dict[When, set[str]] = {"at once": set(), "later": set(), "never": set()}
    for node, when in _imports(ast.parse(source).body, "at once"):
        found[when].update(_targets(node, package))
    eager = frozenset(found["at once"])
    return Module(name, eager, eager | found["later"], eager | found["later"] | found["never"])


def _imports(body: Iterable[ast.AST], when: When) -> Iterator[tuple[ast.Import | ast.ImportFrom, When]]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, when
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            yield from _imports(node.body, "never")
            yield from _imports(node.orelse, when)
        else:
            runs_later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports(ast.iter_child_nodes(node), "later" if runs_later and when == "at once" else when)


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


def cycle(modules: Mapping[str, Module]) -> list[str]:
    """Modules that import each other in a circle, whenever they do; empty where none do.

    A package's __init__ counts where its own names are imported, not where a module inside is.
    """
    graph = {name: {_home(target, modules) for target in module.typed} - {name, ""} for name, module in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return []


def _home(target: str, modules: Mapping[str, Module]) -> str:
    """The module that a dotted name is, or lies in; `` for one of another package."""
    parent = target.rpartition(".")[0]
    return target if target in modules else parent if parent in modules else ""


def strays(modules: Mapping[str, Module], package: str, known: Iterable[str], allowed: Iterable[str]) -> list[str]:
    """Imports in `package`, late ones too, of a package among `known` that is neither itself nor `allowed`."""
    known, allowed = tuple(known), (package, *allowed)
    found = []
    for module in modules.values():
        if inside(module.name, [package]):
            bad = (t for t in module.all if inside(t, known) and not inside(t, allowed))
            found += [f"{module.name} imports {target}" for target in sorted(bad)]
    return found
