"""References: every schema that `$ref` leads to becomes a definition of the root, and others are left out."""

import itertools
import re
from collections.abc import Container, Iterator
from urllib.parse import unquote

from jaxinfer.grammar.schema.unfit import UnfitError
from jaxinfer.grammar.schema.walk import Object, Path, Schema, subschemas, with_placed, with_subschemas, without

_PREFIX = "#/$defs/"
_HOLDERS = ("$defs", "definitions")


_MOST_LOOKS = 20_000
_LISTED = 50
"""Values or keys in a list that take as long as a look at a schema."""


class Definitions:
    """The definitions of a root schema, by which references are followed, and how often they may be: rules that look
    through references and choices could go on for longer than anybody waits. are_known: False: the root has an `$id`
    inside, so that a reference may lead to another place than it says; none is followed."""

    def __init__(self, root: Schema):
        self.are_known = not any(each is not root and "$id" in each for each in _all_within(root, ()))
        self._root = root if self.are_known else None
        self._left = _MOST_LOOKS
        self._known = root.get("$defs", {}) if self.are_known and isinstance(root, dict) else {}

    @property
    def has_looks(self) -> bool:
        """Return whether `may_look` may still be true."""
        return self._left > 0

    def may_look(self, schema: Schema) -> bool:
        """Count one more look at a schema inside others. False where there were too many: it stays unknown."""
        lists = [schema.get(key, ()) for key in ("enum", "required")] if isinstance(schema, dict) else []
        self._left -= 1 + sum(map(len, lists)) // _LISTED
        return self._left >= 0

    def target(self, schema: Schema) -> Schema | None:
        """Return what a schema's `$ref` leads to; None where it has none, or leads out of the root."""
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if reference == "#":
            return self._root
        name = definition_of(reference)
        return None if name is None else self._known.get(name)


def definition_of(reference: object) -> str | None:
    """Return the name of the root's definition that a reference of a gathered schema leads to."""
    if not isinstance(reference, str) or not reference.startswith(_PREFIX):
        return None
    path = _parts(reference)
    return path[1] if len(path) == 2 else None


def pointer_to(path: Path) -> str:
    """Return a JSON pointer within a root."""
    return "/".join(["#", *(part.replace("~", "~0").replace("/", "~1") for part in path)])


def followed(root: Schema, reference: object) -> tuple[Path, Schema] | None:
    """Return where a reference leads within a root, and what is there; None where that is nothing."""
    if not isinstance(reference, str) or not _is_pointer(reference):
        return None
    found, path = root, _parts(reference)
    for part in path:
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return path, found


def gathered(root: Schema) -> Schema:
    """Return the same schema with every reference to `#` or a definition of the root, no other definitions, and no
    `$id` inside. One with a reference that leads out of it stays as it is. Raises UnfitError for a pointer below an
    `$id` that stands where no schema does."""
    if not isinstance(root, dict):
        return root
    rebased = _rebased(root, (), ())
    found = _reached(rebased)
    if found is None:
        return root
    names = _names([*found])
    definitions = {names[path]: _renamed(target, names) for path, target in found.items() if path}
    return {**_renamed(rebased, names), **({"$defs": definitions} if definitions else {})}


def _rebased(schema: Schema, at: Path, base: Path) -> Schema:
    """A schema whose pointers begin at the root, and not at the innermost `$id` around them. at: where it stands. base:
    where that `$id` does."""
    if not isinstance(schema, dict):
        return schema
    if at and isinstance(schema.get("$id"), str):
        schema, base = without(schema, "$id"), at
    if base and _is_pointer(schema.get("$ref")):
        schema = {**schema, "$ref": pointer_to(base + _parts(schema["$ref"]))}
    return with_placed(schema, lambda inner, path: _rebased(inner, at + path, base))


def _reached(root: Schema) -> dict[Path, Schema] | None:
    """Return what references lead to, by its place; None if one leads elsewhere."""
    found: dict[Path, Schema] = {}
    waiting = [root]
    while waiting:
        for each in _all_within(waiting.pop()):
            if (
                each is not root
                and "$id" in each
                and any(_is_pointer(inner.get("$ref")) for inner in _all_within(each))
            ):
                raise UnfitError("a $ref inside a schema with an $id where no schema stands is not supported")
            if "$ref" not in each:
                continue
            if (led := followed(root, each["$ref"])) is None:
                return None
            if led[0] not in found:
                found[led[0]] = led[1]
                waiting.append(led[1])
    return found


def _is_pointer(reference: object) -> bool:
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))


def _all_within(schema: Schema, left_out: Container[str] = _HOLDERS) -> Iterator[Object]:
    """A schema and all inside it. left_out: keywords whose schemas are not looked at."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += [inner for path, inner in subschemas(each) if path[0] not in left_out]


def _names(paths: list[Path]) -> dict[Path, str]:
    """A name for each place, its own where that is free."""
    names: dict[Path, str] = {}
    taken: set[str] = set()
    numbered: dict[str, Iterator[str]] = {}
    for path in paths:
        own = re.sub(r"[^A-Za-z0-9_.-]", "_", path[-1]) if path else ""
        choices = numbered.setdefault(own, _numbered(own))  # goes on where the last place of this name ended
        names[path] = next(each for each in choices if each not in taken)
        taken.add(names[path])
    return names


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in itertools.count(2))


def _renamed(schema: Schema, names: dict[Path, str]) -> Schema:
    if not isinstance(schema, dict):
        return schema
    own = without(schema, *_HOLDERS)
    if isinstance(own.get("$ref"), str):
        path = _parts(own["$ref"])
        own["$ref"] = pointer_to(("$defs", names[path])) if path else "#"
    return with_subschemas(own, lambda inner: _renamed(inner, names))


def _parts(reference: str) -> Path:
    pointed = unquote(reference)[2:]
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointed.split("/")) if pointed else ()
