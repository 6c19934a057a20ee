"""Says what became of every test between two revisions: `.venv/bin/python scripts/map_tests.py OLD NEW`.

Collects the tests of both in work trees of a temporary folder and prints old id and new id, grouped by state.
Exits with 1 if a test is gone. `--help` lists the options.

- kept: the same id.
- moved: a function of that name in another file.
- renamed: the same code under another name.
- changed: similar code under another name, or a similar case of the same function. Read these.
- gone: nothing similar; it may have been merged into another test.

A kept or moved test may check less than before: the last lines count the assertions of those that lost some.
"""

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from difflib import SequenceMatcher
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
SIMILAR = 0.6
"""The least similarity, of 1, of a test that is called changed. Lower, strangers with the same fixtures are paired."""

State = Literal["kept", "moved", "renamed", "changed", "gone"]
STATES: tuple[State, ...] = ("kept", "moved", "renamed", "changed", "gone")


class Function(NamedTuple):
    """One test function. code: its text without layout, comments, docstring and names of modules."""

    path: str
    name: str
    code: str
    num_assertions: int
    cases: tuple[str, ...]
    """Texts in brackets in the ids of its cases; one empty string if it has no parameters."""

    @property
    def ids(self) -> dict[str, str]:
        """Id of each case."""
        return {case: f"{self.path}::{self.name}{case and f'[{case}]'}" for case in self.cases}


class Fate(NamedTuple):
    old: str
    state: State
    new: str


class Pair(NamedTuple):
    old: Function
    state: State
    new: Function


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("new", metavar="NEW")
    parser.add_argument("--all", action="store_true", help="list the kept tests too")
    parser.add_argument("--word", action="append", default=[], metavar="OLD=NEW", help="a word that the code renamed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old, new = (
            collect(revision, Path(folder, name)) for revision, name in ((arguments.old, "old"), (arguments.new, "new"))
        )
    pairs = match([reworded(test, arguments.word) for test in old], new)
    fates = trace(old, pairs)
    _print_fates(fates, [state for state in STATES if arguments.all or state != "kept"])
    _print_weaker(pairs)
    raise SystemExit(any(fate.state == "gone" for fate in fates))


def collect(revision: str, folder: Path) -> list[Function]:
    """The tests of a revision, which is checked out in `folder` for as long as this takes."""
    git = ["git", "-C", str(REPOSITORY), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", folder, revision], check=True)
    try:
        return read_tests(folder, _collect_ids(folder))
    finally:
        subprocess.run([*git, "remove", "--force", folder], check=True)


def _collect_ids(root: Path) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (root, root / "kernels")))}
    done = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout)
    ids = done.stdout.partition("\n\n")[0]
    return ids.replace(str(root), "REPOSITORY").splitlines()  # some name the folder in which they are collected


def read_tests(root: Path, ids: Iterable[str]) -> list[Function]:
    """The test functions to which ids of pytest belong, with their sources below `root`."""
    cases: dict[tuple[str, str], list[str]] = {}
    for test_id in ids:
        path, _, rest = test_id.partition("::")
        name, _, case = rest.partition("[")
        cases.setdefault((path, name), []).append(case.removesuffix("]"))
    sources = {path: _functions(ast.parse((root / path).read_text(encoding="utf-8"))) for path, _ in cases}
    return [Function(path, name, *sources[path][name], tuple(found)) for (path, name), found in cases.items()]


def _functions(tree: ast.Module) -> dict[str, tuple[str, int]]:
    """Code and number of assertions of each function of a file, by its name as in pytest's ids."""
    modules = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    found = {}
    for prefix, node in _definitions(tree):
        num_assertions = sum(_is_assertion(part) for part in ast.walk(node))
        found[f"{prefix}{node.name}"] = (_WithoutModules(modules).code(node), num_assertions)
    return found


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in tree.body:
        members = (
            [(f"{node.name}::", member) for member in node.body] if isinstance(node, ast.ClassDef) else [("", node)]
        )
        for prefix, member in members:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix, member


def _is_assertion(node: ast.AST) -> bool:
    """An assertion, or a block that has to raise or to warn."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "pytest" and node.attr in ("raises", "warns")
    return isinstance(node, ast.Assert)


class _WithoutModules(ast.NodeTransformer):
    def __init__(self, modules: set[str]) -> None:
        self._modules = modules

    def code(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        parts = [node.args, *(part for part in body if not isinstance(part, ast.Import | ast.ImportFrom))]
        return "\n".join(ast.unparse(self.visit(part)) for part in parts)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node = ast.Attribute(self.visit(node.value), node.attr, node.ctx)
        is_member = isinstance(node.value, ast.Name) and node.value.id in self._modules
        return ast.Name(node.attr, node.ctx) if is_member else node


def reworded(test: Function, words: Iterable[str]) -> Function:
    """A test with code as if `OLD=NEW` words had been renamed; its id stays."""
    code = test.code
    for word in words:
        before, _, after = word.partition("=")
        code = code.replace(before, after)
    return test._replace(code=code)


def match(old: Iterable[Function], new: Iterable[Function]) -> list[Pair]:
    """Pairs of an old test and what became of it. No test is in two pairs; a test without a pair is gone or is new."""
    old_left, new_left = list(old), list(new)
    pairs: list[Pair] = []

    def take(state: State, candidates: Iterable[tuple[float, Function, Function]]) -> None:
        for _, before, after in sorted(candidates, key=lambda candidate: -candidate[0]):
            if before in old_left and after in new_left:
                pairs.append(Pair(before, state, after))
                old_left.remove(before)
                new_left.remove(after)

    here = {(test.path, test.name): test for test in new_left}
    take("kept", [(1, test, here[test[:2]]) for test in old_left if test[:2] in here])
    take("moved", _similar(old_left, new_left, lambda before, after: before.name == after.name, least=0))
    take("renamed", _similar(old_left, new_left, lambda before, after: before.code == after.code, least=1))
    take("changed", _similar(old_left, new_left, lambda *_: True, least=SIMILAR))
    return pairs


def _similar(
    old: list[Function], new: list[Function], may_pair: Callable[[Function, Function], bool], least: float
) -> Iterator[tuple[float, Function, Function]]:
    """Pairs with their similarity; between equals, those of one file come first."""
    for before, after in product(old, new):
        if may_pair(before, after) and (similarity := _similarity(before.code, after.code, least)) >= least:
            yield similarity + 0.01 * (before.path == after.path), before, after


def _similarity(one: str, other: str, least: float) -> float:
    """Return the similarity of two texts, from 0 to 1; anything less than `least` is 0."""
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return matcher.ratio() if min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= least else 0


def trace(old: Iterable[Function], pairs: Iterable[Pair]) -> list[Fate]:
    """Return the fate of each case of each old test."""
    by_old = {(pair.old.path, pair.old.name): pair for pair in pairs}
    fates = []
    for test in old:
        pair = by_old.get((test.path, test.name))
        fates += _trace_cases(pair) if pair else [Fate(test_id, "gone", "") for test_id in test.ids.values()]
    return fates


def _trace_cases(pair: Pair) -> Iterator[Fate]:
    old, new = pair.old.ids, pair.new.ids
    if list(old) == [""] and list(new) != [""]:  # its one case has become several
        yield Fate(old[""], "changed", f"{pair.new.path}::{pair.new.name}")
        return
    changed = dict(_pair_cases([case for case in old if case not in new], [case for case in new if case not in old]))
    for case, test_id in old.items():
        if case in new:
            yield Fate(test_id, pair.state, new[case])
        elif case in changed:
            yield Fate(test_id, "changed", new[changed[case]])
        else:
            yield Fate(test_id, "gone", "")


def _pair_cases(old: list[str], new: list[str]) -> Iterator[tuple[str, str]]:
    """Cases of one function with other names: in order if there are as many as before, or else the similar ones."""
    if len(old) == len(new):
        yield from zip(old, new, strict=True)
        return
    ratios = [(_similarity(before, after, SIMILAR), before, after) for before, after in product(old, new)]
    for similarity, before, after in sorted(ratios, key=lambda ratio: -ratio[0]):
        if similarity >= SIMILAR and before in old and after in new:
            old.remove(before)
            new.remove(after)
            yield before, after


def _print_fates(fates: Iterable[Fate], listed: Iterable[State]) -> None:
    fates = list(fates)
    counts = Counter(fate.state for fate in fates)
    for state in listed:
        print(f"{state}: {counts[state]}")
        for fate in fates:
            if fate.state == state:
                print(f"  {fate.old} -> {fate.new}" if fate.new else f"  {fate.old}")
    print(", ".join(f"{counts[state]} {state}" for state in STATES), f"of {len(fates)} tests", sep=", ")


def _print_weaker(pairs: Iterable[Pair]) -> None:
    weaker = [pair for pair in pairs if pair.new.num_assertions < pair.old.num_assertions]
    print(f"fewer assertions: {len(weaker)} functions")
    for old, _, new in weaker:
        print(f"  {new.path}::{new.name}: {old.num_assertions} -> {new.num_assertions}")


if __name__ == "__main__":
    main()
