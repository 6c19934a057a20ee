"""Names of properties: what `propertyNames` allows, as `properties` and `patternProperties` say it."""

from jaxinfer.grammar.schema.facts import listed_values, types_of
from jaxinfer.grammar.schema.references import Definitions
from jaxinfer.grammar.schema.regexes import of_length, one_of
from jaxinfer.grammar.schema.walk import Object, Schema, constraints_of

_DEPTH = 8
_DATE = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\.[0-9]{1,9})?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FORMATS = {
    "date": _DATE,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "ipv4": rf"(?:{_OCTET}\.){{3}}{_OCTET}",
    "time": _TIME,
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
"""Patterns of names by format; names of other formats are free, as formats are annotations by default."""
_READ = frozenset(("$ref", "allOf", "anyOf", "const", "enum", "format", "maxLength", "minLength", "pattern", "type"))

Names = list[str] | str
"""These names, or those that match a pattern."""


def names_of(schema: Schema, definitions: Definitions, depth: int = _DEPTH) -> list[Names] | None:
    """Return what a name has to be, all of it, by a schema of names; None where that cannot be told."""
    if isinstance(schema, bool):
        return [] if schema else [[]]
    if not depth or not definitions.may_look(schema) or not constraints_of(schema) <= _READ:
        return None
    if "string" not in types_of(schema):
        return [[]]
    parts = [definitions.target(schema), *schema.get("allOf", ())] if "$ref" in schema else schema.get("allOf", [])
    found = [None if each is None else names_of(each, definitions, depth - 1) for each in parts]
    if "anyOf" in schema:
        found.append(_any_of(schema["anyOf"], definitions, depth - 1))
    if None in found:
        return None
    return [*_own(schema), *(name for names in found for name in names or ())]


def only(names: Names) -> Object:
    """Return a schema of objects that have no other names."""
    if isinstance(names, str):
        return {"patternProperties": {names: True}, "additionalProperties": False}
    return {"properties": dict.fromkeys(names, True), "additionalProperties": False}


def _own(schema: Object) -> list[Names]:
    found: list[Names] = []
    listed = listed_values(schema)
    if listed is not None:
        found.append(list(dict.fromkeys(each for each in listed if isinstance(each, str))))
    if "minLength" in schema or "maxLength" in schema:
        found.append(of_length(schema.get("minLength", 0), schema.get("maxLength")))
    if "pattern" in schema:
        found.append(schema["pattern"])
    if (pattern := _FORMATS.get(schema.get("format", ""))) is not None:
        found.append(f"^(?:{pattern})$")
    return found


def _any_of(schemas: list[Schema], definitions: Definitions, depth: int) -> list[Names] | None:
    """Join the names of schemas each of which says one thing."""
    found = [names_of(each, definitions, depth) for each in schemas]
    if [] in found:
        return []
    known = [each[0] for each in found if each is not None and len(each) == 1]
    if len(known) < len(schemas):
        return None
    if all(isinstance(each, list) for each in known):
        return [[*dict.fromkeys(name for each in known for name in each)]]
    patterns = [each if isinstance(each, str) else one_of(each) for each in known if each != []]
    return ["|".join(f"(?:{each})" for each in patterns)]
