"""Rules of strings and numbers: formats, patterns, and values that llguidance reads as float64."""

import math
from typing import Any, TypeGuard

from jaxinfer.grammar.schema.facts import key_of, listed_values
from jaxinfer.grammar.schema.references import Definitions
from jaxinfer.grammar.schema.regexes import translated
from jaxinfer.grammar.schema.walk import Object, Schema, without

FORMATS = frozenset(("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"))
"""Formats that llguidance enforces; others are annotations, as JSON Schema has them by default."""
_LONGEST = {"date-time": 35, "duration": 46, "time": 24}
"""Characters of formats with digits without end: time has nanoseconds."""
_DURATION = "^[^0-9]*([0-9]{1,6}[^0-9]+)*$"
"""Six digits for each part of a duration, so that it is one that programs can hold."""
COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains",
)  # fmt: skip
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_DIGITS = 15
"""Digits of a number that is read as it is written: llguidance's reader may round others to a neighbour."""
FRACTION_DIGITS = 24
"""Digits after a point: what JavaScript writes of a float64 without an exponent, 17 after 6 zeros, and one more."""
_LARGEST = 2**63 - 1024
"""The largest float64 that is an int64. llguidance has no integers below its negative."""


class InexactError(Exception):
    """A value that llguidance would round."""


def counts(schema: Object) -> Schema:
    """Lengths and counts as integers, which JSON may write as 2.0."""
    return {**schema, **{key: int(schema[key]) for key in COUNTS if key in schema}}


def listed(schema: Object) -> Schema:
    """`const` or `enum`, not both, and no value twice."""
    if "enum" not in schema:
        return schema
    values: dict[object, Any] = {}
    for each in schema["enum"]:
        values.setdefault(key_of(each), each)
    if "const" in schema:
        return without(schema, "enum") if key_of(schema["const"]) in values else False
    return {**schema, "enum": [*values.values()]}


def formats(schema: Object, definitions: Definitions) -> Schema:
    """`format` where llguidance holds it, with a bound of what it may take."""
    if "format" not in schema:
        return schema
    if schema["format"] not in FORMATS:
        return without(schema, "format")
    longest = _LONGEST.get(schema["format"])
    if longest is None:
        return schema
    bounded = {**schema, "maxLength": min(longest, schema.get("maxLength", longest))}
    return {"pattern": _DURATION, **bounded} if schema["format"] == "duration" else bounded


def patterns(schema: Object, definitions: Definitions) -> Schema:
    """Patterns in ECMA-262's words."""
    changed: Object = {}
    if "pattern" in schema:
        changed["pattern"] = translated(schema["pattern"])
    if "patternProperties" in schema:
        given = schema["patternProperties"]
        changed["patternProperties"] = {translated(pattern): inner for pattern, inner in given.items()}
    return {**schema, **changed}


def constants(schema: Object, definitions: Definitions) -> Schema:
    """Raises InexactError for an integer in `const` or `enum` that is no float64."""
    if "const" in schema or "enum" in schema:
        for each in listed_values(schema) or ():
            _check_exact(each)
    return schema


def _check_exact(value: Any) -> None:
    if isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_exact(inner)
    elif isinstance(value, int) and (abs(value) > _LARGEST or int(float(value)) != value):
        raise InexactError(f"{value} is no integer that a float64 holds")


def bounds(schema: Object, definitions: Definitions) -> Schema:
    """Bounds that are float64: others are rounded to what is still within them. Raises InexactError where no int64 is
    within those of an integer."""
    changed: Object = {}
    for key in (*_LOWER, *_UPPER):
        bound = schema.get(key)
        if isinstance(bound, int) and not isinstance(bound, bool) and abs(bound) > 2**53:
            if schema.get("type") == "integer":
                bound = _within_int64(bound, key)
            changed[key] = _rounded(bound, math.inf if key in _LOWER else -math.inf)
    return _without_exclusive_integers({**schema, **changed})


def _without_exclusive_integers(schema: Object) -> Object:
    """Replace an integer that excludes itself by the next number, seen from zero: llguidance takes 1 for more than 1 if
    less than 2 is allowed."""
    for key, bound, sign in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        excluded = schema.get(key, True)
        if _is_number(excluded) and 0 <= sign * excluded < 10 ** (_DIGITS - 1) and excluded == int(excluded):
            near = sign * _above(sign * int(excluded), whole=schema.get("type") == "integer")
            nearest = max if sign > 0 else min
            schema = {**without(schema, key), bound: nearest(near, schema.get(bound, near))}
    return schema


def _above(integer: int, *, whole: bool) -> float:
    """The next integer, or the next number of so many digits."""
    if whole:
        return integer + 1
    return integer + 10.0 ** (len(str(integer)) - _DIGITS) if integer else 10.0**-FRACTION_DIGITS


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _within_int64(bound: int, key: str) -> int:
    if bound > _LARGEST if key in _LOWER else bound < -_LARGEST:
        raise InexactError(f"{key}: {bound} leaves no integer of 64 bits")
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
