"""JSON Schemas, looked at for what llguidance does not do: exact bounds of large integers, and where one is refused."""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from jaxinfer.errors import ParameterError

Path = tuple[str, ...]
_OF_MANY = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_ONE = (
    "items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_OF_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_LARGEST = 2**63 - 1024
"""The largest float64 that is an int64. llguidance has no integers below its negative."""


def subschemas(schema: Any) -> Iterator[tuple[Path, Any]]:
    """Those directly inside a schema, with the way to each."""
    if not isinstance(schema, dict):
        return
    for key in _OF_ONE:
        if isinstance(schema.get(key), dict):
            yield (key,), schema[key]
    for key in _OF_MANY:
        if isinstance(schema.get(key), dict):
            yield from (((key, name), inner) for name, inner in schema[key].items())
    for key in _OF_LISTS:
        if isinstance(schema.get(key), list):
            yield from (((key, str(number)), inner) for number, inner in enumerate(schema[key]))


def with_exact_bounds(text: str, param: str) -> str:
    """The same schema, whose bounds are float64, which is what llguidance reads: others are rounded to what is still
    within them. Raises ParameterError where no int64 is within those of an integer."""
    if not any(key in text for key in (*_LOWER, *_UPPER)):
        return text
    schema = json.loads(text)
    return json.dumps(schema, ensure_ascii=False) if _tighten(schema, param) else text


def _tighten(schema: Any, param: str) -> bool:
    """Whether any bound has changed."""
    changed = False
    for key in (*_LOWER, *_UPPER) if isinstance(schema, dict) else ():
        bound = schema.get(key)
        if isinstance(bound, int) and not isinstance(bound, bool) and abs(bound) > 2**53:
            if schema.get("type") == "integer":
                bound = _within_int64(bound, key, param)
            schema[key] = _rounded(bound, math.inf if key in _LOWER else -math.inf)
            changed = True
    return any([changed, *(_tighten(inner, param) for _, inner in subschemas(schema))])


def _within_int64(bound: int, key: str, param: str) -> int:
    if bound > _LARGEST if key in _LOWER else bound < -_LARGEST:
        raise ParameterError(param, f"{key}: {bound} leaves no integer of 64 bits")
    return min(max(bound, -_LARGEST), _LARGEST)


def _rounded(bound: int, towards: float) -> int:
    """To a float64, towards infinity or minus infinity."""
    try:
        near = float(bound)
    except OverflowError:
        return bound
    if near != bound and (near < bound) == (towards > 0):
        near = math.nextafter(near, towards)
    return int(near)


def place_of(schema: Any, is_to_blame: Callable[[Any], bool]) -> str:
    """Where in a schema that is refused the reason is, as a JSON pointer: the innermost schema that is to blame for it
    by itself, with the definitions of the whole. `#` where none inside is."""
    defined = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    at: Path = ()
    inner: Any = schema
    seen: set[Path] = {at}
    while True:
        for path, candidate in _followed(schema, inner, at):
            if path not in seen and isinstance(candidate, dict) and is_to_blame({**defined, **candidate}):
                at, inner = path, candidate
                seen.add(path)
                break
        else:
            return "/".join(["#", *(part.replace("~", "~0").replace("/", "~1") for part in at)])


def _followed(whole: Any, schema: Any, at: Path) -> Iterator[tuple[Path, Any]]:
    """What is directly inside a schema, and what it refers to, with the way from the root."""
    yield from ((at + path, inner) for path, inner in subschemas(schema))
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return
    path = tuple(part.replace("~1", "/").replace("~0", "~") for part in reference[2:].split("/"))
    found = whole
    for part in path:
        if not isinstance(found, dict) or part not in found:
            return
        found = found[part]
    yield path, found
