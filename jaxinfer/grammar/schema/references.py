"""References: every schema that `$ref` leads to becomes a definition of the root, and others are left out."""

import re
from collections.abc import Iterator
from urllib.parse import unquote

from jaxinfer.grammar.schema.walk import Object, Path, Schema, subschemas, with_subschemas, without

_PREFIX = "#/$defs/"
_HOLDERS = ("$defs", "definitions")


_MOST_LOOKS = 20_000


class Definitions:
    """The definitions of a root schema, by which references are followed, and how often they may be: rules that look
    through references and choices could go on for longer than anybody waits."""

    def __init__(self, root: Schema):
        self._root = root
        self._left = _MOST_LOOKS
        self._known = root.get("$defs", {}) if isinstance(root, dict) else {}

    def may_look(self) -> bool:
        """Count one more look at a schema inside others. False where there were too many: it stays unknown."""
        self._left -= 1
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
    return _parts(reference)[-1]


def pointer_to(path: Path) -> str:
    """Return a JSON pointer within a root."""
    return "/".join(["#", *(part.replace("~", "~0").replace("/", "~1") for part in path)])


def followed(root: Schema, reference: object) -> tuple[Path, Schema] | None:
    """Return where a reference leads within a root, and what is there; None where that is nothing."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
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
    """Return the same schema with every reference to `#` or a definition of the root, and no other definitions. One
    with a reference that leads out of it, or with `$id` inside, which gives references another base, stays as it is."""
    found = _reached(root)
    if found is None or not isinstance(root, dict):
        return root
    names = _names([*found])
    definitions = {names[path]: _renamed(target, names) for path, target in found.items() if path}
    return {**_renamed(root, names), **({"$defs": definitions} if definitions else {})}


def _reached(root: Schema) -> dict[Path, Schema] | None:
    """What references lead to, by its place; None where one leads elsewhere."""
    found: dict[Path, Schema] = {}
    waiting = [root]
    while waiting:
        for each in _all_within(waiting.pop()):
            if each is not root and isinstance(each.get("$id"), str):
                return None
            if "$ref" not in each:
                continue
            if (led := followed(root, each["$ref"])) is None:
                return None
            if led[0] not in found:
                found[led[0]] = led[1]
                waiting.append(led[1])
    return found


def _all_within(schema: Schema) -> Iterator[Object]:
    """A schema and all inside it, without definitions."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += [inner for path, inner in subschemas(each) if path[0] not in _HOLDERS]


def _names(paths: list[Path]) -> dict[Path, str]:
    """A name for each place, its own where that is free."""
    names: dict[Path, str] = {}
    taken: set[str] = set()
    for path in paths:
        own = re.sub(r"[^A-Za-z0-9_.-]", "_", path[-1]) if path else ""
        name = next(each for each in _numbered(own) if each not in taken)
        taken.add(name)
        names[path] = name
    return names


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}_{number}"
        number += 1


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
