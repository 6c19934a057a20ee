"""What a client is told of a body that has another form than its endpoint's: msgspec's errors in our own words."""

import re
from typing import NamedTuple

_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_FIELD = re.compile(r"^Object (?P<how>contains unknown|missing required) field `(?P<name>[^`]*)`")
_TYPES = re.compile(r"^Expected `(?P<wanted>[^`]*)`, got `(?P<given>[^`]*)`")
_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


class WrongValue(NamedTuple):
    """param: the field, as in `messages[0].role`; None for the body as a whole."""

    message: str
    param: str | None


def explain(error: str) -> WrongValue:
    """Text of a msgspec.ValidationError as a message that names the field, and the field."""
    path = _PATH.search(error)
    inside, problem = (path[1], error[: path.start()]) if path else ("", error)
    if named := _FIELD.match(problem):
        param = f"{inside}.{named['name']}" if inside else named["name"]
        unknown = named["how"] == "contains unknown"
        return WrongValue(f"{param}: {'is not a known field' if unknown else 'is missing'}", param)
    if types := _TYPES.match(problem):
        problem = f"must be {_wanted(types['wanted'])}, not {_name(types['given'])}"
        return WrongValue(f"{inside}: {problem}" if inside else f"the request body {problem}", inside or None)
    return WrongValue(f"{inside}: {problem}" if inside else problem, inside or None)


def _wanted(names: str) -> str:
    """`str | array | null` as `a string or an array, or null`."""
    parts = names.split(" | ")
    others = [_name(part) for part in parts if part != "null"]
    return " or ".join(others) + (", or null" if "null" in parts and others else "null" if "null" in parts else "")


def _name(kind: str) -> str:
    return _NAMES.get(kind, kind)
