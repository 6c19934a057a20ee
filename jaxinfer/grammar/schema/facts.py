"""Facts: what every instance of a schema is known to be, by which two schemas are seen to share none."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from jaxinfer.grammar.schema.references import Definitions
from jaxinfer.grammar.schema.walk import Object, Schema

_DEPTH = 8
"""References and choices that are followed one within the other."""
TYPES = frozenset(("null", "boolean", "object", "array", "string", "integer", "fraction"))
"""JSON Schema's, with `number` parted into integers and other numbers."""


class Facts(NamedTuple):
    """Facts of a schema's instances. parts: schemas that each holds for them. types: of TYPES. values: all that they
    may be; None where that is not known. required: keys of those that are objects."""

    parts: list[Object]
    types: frozenset[str]
    values: list[Any] | None
    required: frozenset[str]


def disjoint(first: Schema, second: Schema, definitions: Definitions, depth: int = _DEPTH) -> bool:
    """Return whether no instance fits both schemas, as far as can be seen; False where that is not known."""
    if first is False or second is False:
        return True
    if not depth or not (definitions.may_look(first) and definitions.may_look(second)):
        return False
    one, other = facts_of(first, definitions), facts_of(second, definitions)
    if _apart(one, other) or _objects_apart(one, other, definitions, depth):
        return True
    choices = [(options, second) for options in _choices(one)] + [(options, first) for options in _choices(other)]
    return any(all(disjoint(each, rest, definitions, depth - 1) for each in options) for options, rest in choices)


def all_apart(parts: list[Facts], definitions: Definitions) -> bool:
    """Return whether no two of many share an instance, as far as the types of each, lists of values, or a key with a
    value of its own tell. Takes no longer for each of them where there are more."""
    kinds: dict[frozenset[str], list[Facts]] = {}
    for part in parts:
        kinds.setdefault(part.types, []).append(part)
    types = [each for kind in kinds for each in kind]
    return len(types) == len({*types}) and all(_listed_apart(each, definitions) for each in kinds.values())


def _listed_apart(parts: list[Facts], definitions: Definitions) -> bool:
    if len(parts) == 1 or _values_apart(parts):
        return True
    if parts[0].types != {"object"}:
        return False
    common = frozenset.intersection(*(part.required for part in parts))
    return any(
        definitions.has_looks and _values_apart([facts_of(_value_of(part, name), definitions) for part in parts])
        for name in common
    )


def _values_apart(parts: list[Facts]) -> bool:
    keys = [key for part in parts for key in {*map(key_of, part.values or ())}]
    return all(part.values is not None for part in parts) and len(keys) == len({*keys})


def facts_of(schema: Schema, definitions: Definitions) -> Facts:
    """Return what is known of a schema's instances."""
    parts = list(_parts(schema, definitions, _DEPTH))
    types = TYPES.intersection(*map(types_of, parts))
    listed = [values for part in parts if (values := listed_values(part)) is not None]
    required = frozenset(name for part in parts for name in part.get("required", ()))
    values = [each for each in min(listed, key=len) if type_of(each) in types] if listed else None
    if values is not None:
        types = frozenset(map(type_of, values))
    return Facts(parts, types, values, required)


def types_of(schema: Object) -> frozenset[str]:
    """Return what of TYPES the keyword `type` of a schema allows."""
    given = schema.get("type")
    if given is None:
        return TYPES
    names = [given] if isinstance(given, str) else given
    return frozenset(each for name in names for each in (("integer", "fraction") if name == "number" else (name,)))


def type_of(value: Any) -> str:
    """Return which of TYPES a value is."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "fraction"
    return {str: "string", list: "array", dict: "object"}[type(value)]


def listed_values(schema: Object) -> list[Any] | None:
    """Return what `const` or `enum` of a schema lists, which has one of them, as `scalars.listed` leaves it."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def key_of(value: Any) -> object:
    """Return a key that two values share where JSON Schema says that they are equal: 1 and 1.0, not 1 and true."""
    if isinstance(value, list):
        return ("array", *map(key_of, value))
    if isinstance(value, dict):
        return ("object", frozenset((name, key_of(each)) for name, each in value.items()))
    return (isinstance(value, bool), value)


def _parts(schema: Schema, definitions: Definitions, depth: int) -> Iterator[Object]:
    """A schema, and those that must hold with it."""
    if not isinstance(schema, dict) or not definitions.may_look(schema):
        return
    yield schema
    if depth:
        inner = [definitions.target(schema), *schema.get("allOf", ())]
        yield from (part for each in inner for part in _parts(each, definitions, depth - 1))


def _choices(facts: Facts) -> list[list[Schema]]:
    return [part[key] for part in facts.parts for key in ("anyOf", "oneOf") if key in part]


def _apart(one: Facts, other: Facts) -> bool:
    common = one.types & other.types
    if not common:
        return True
    if one.values is not None and other.values is not None:
        return not {*map(key_of, one.values)} & {*map(key_of, other.values)}
    return any(common <= types and _ranges_apart([*one.parts, *other.parts], *keys) for types, keys in _RANGES)


_Keys = tuple[str, ...]
_RANGES: tuple[tuple[frozenset[str], tuple[_Keys, _Keys]], ...] = (
    (frozenset(("integer", "fraction")), (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))),
    (frozenset(("string",)), (("minLength",), ("maxLength",))),
    (frozenset(("array",)), (("minItems",), ("maxItems",))),
)
"""Keywords of lower and of upper bounds, by the types that they are of."""


def _ranges_apart(parts: list[Object], lower: _Keys, upper: _Keys) -> bool:
    """Return True if a least is above a most; bounds that exclude themselves count as if they did not."""
    least = [part[key] for part in parts for key in lower if _is_number(part.get(key))]
    most = [part[key] for part in parts for key in upper if _is_number(part.get(key))]
    return bool(least) and bool(most) and max(least) > min(most)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _objects_apart(one: Facts, other: Facts, definitions: Definitions, depth: int) -> bool:
    """Return True if both are objects, and what one has to have has no value that fits both."""
    if one.types & other.types != {"object"}:
        return False
    names = one.required | other.required
    return any(
        definitions.has_looks and disjoint(_value_of(one, name), _value_of(other, name), definitions, depth - 1)
        for name in names
    )


def _value_of(facts: Facts, name: str) -> Schema:
    """Return what the value of a key must be, for all that is known."""
    return {"allOf": [_own_value(part, name) for part in facts.parts]}


def _own_value(schema: Object, name: str) -> Schema:
    if name in schema.get("properties", {}):
        return schema["properties"][name]
    return True if schema.get("patternProperties") else schema.get("additionalProperties", True)
