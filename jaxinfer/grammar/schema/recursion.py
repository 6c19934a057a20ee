"""Recursion: schemas that no finite text fits, since they always need another of themselves, become `false`."""

from collections.abc import Iterator

from jaxinfer.grammar.schema.facts import types_of
from jaxinfer.grammar.schema.references import definition_of
from jaxinfer.grammar.schema.walk import Object, Schema, subschemas, with_subschemas

_CONTAINERS = frozenset(("object", "array"))


def without_endless(root: Schema) -> Schema:
    """Return a schema in which what cannot end is `false`; itself, where it cannot."""
    if not isinstance(root, dict):
        return root
    ends = _Ends(root)
    changed = _pruned(root, ends)
    if not isinstance(changed, dict) or "$defs" not in root:
        return changed
    return {**changed, "$defs": {name: _pruned(each, ends) for name, each in root["$defs"].items()}}


def _pruned(schema: Schema, ends: "_Ends") -> Schema:
    if not ends.can_end(schema):
        return False
    return with_subschemas(schema, lambda inner: _pruned(inner, ends)) if isinstance(schema, dict) else schema


class _Ends:
    """Find the definitions that can end: a least fixed point, in which those are found one from the other. What is not
    understood of a schema counts as if it can."""

    def __init__(self, root: Object):
        self._definitions = {"": root, **{f"/{name}": each for name, each in root.get("$defs", {}).items()}}
        self._known: set[str] = set()
        self._found: dict[int, bool] | None = None
        users = self._users()
        waiting = {*self._definitions}
        while waiting:
            name = waiting.pop()
            if name not in self._known and self.can_end(self._definitions[name]):
                self._known.add(name)
                waiting |= users.get(name, set())
        self._found = {}  # from now on nothing changes

    def _users(self) -> dict[str, set[str]]:
        """Who refers to each definition."""
        users: dict[str, set[str]] = {}
        for name, each in self._definitions.items():
            for reference in _references(each):
                users.setdefault(reference, set()).add(name)
        return users

    def can_end(self, schema: Schema) -> bool:
        """Return True if a finite value fits, for all that is known."""
        if not isinstance(schema, dict):
            return schema is not False
        if self._found is None:
            return self._ends(schema)
        if id(schema) not in self._found:
            self._found[id(schema)] = self._ends(schema)
        return self._found[id(schema)]

    def _ends(self, schema: Object) -> bool:
        if not self._reference_ends(schema.get("$ref")):
            return False
        if not all(map(self.can_end, schema.get("allOf", ()))):
            return False
        if not all(any(map(self.can_end, schema[key])) for key in ("anyOf", "oneOf") if key in schema):
            return False
        if "const" in schema or "enum" in schema or types_of(schema) - _CONTAINERS:
            return True
        types = types_of(schema)
        return ("object" in types and self._object_ends(schema)) or ("array" in types and self._array_ends(schema))

    def _reference_ends(self, reference: object) -> bool:
        name = _definition(reference)
        return name is None or name not in self._definitions or name in self._known

    def _object_ends(self, schema: Object) -> bool:
        if not all(self._value_ends(schema, name) for name in schema.get("required", ())):
            return False
        others = schema.get("patternProperties") or self.can_end(schema.get("additionalProperties", True))
        named = sum(map(self.can_end, schema.get("properties", {}).values()))
        return bool(others) or named >= schema.get("minProperties", 0)

    def _value_ends(self, schema: Object, name: str) -> bool:
        if name in schema.get("properties", {}):
            return self.can_end(schema["properties"][name])
        return bool(schema.get("patternProperties")) or self.can_end(schema.get("additionalProperties", True))

    def _array_ends(self, schema: Object) -> bool:
        needed, prefix = schema.get("minItems", 0), schema.get("prefixItems", [])
        items = schema.get("items", True)
        rest_ends = needed <= len(prefix) or isinstance(items, list) or self.can_end(items)
        return rest_ends and all(map(self.can_end, prefix[:needed]))


def _definition(reference: object) -> str | None:
    """The key that `_Ends` has what a reference leads to by; None where it leads elsewhere."""
    name = definition_of(reference)
    return "" if reference == "#" else None if name is None else f"/{name}"


def _references(schema: Schema) -> Iterator[str]:
    """Return what a schema refers to, without its definitions."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if (name := _definition(each.get("$ref"))) is not None:
                yield name
            waiting += [inner for path, inner in subschemas(each) if path[0] != "$defs"]
