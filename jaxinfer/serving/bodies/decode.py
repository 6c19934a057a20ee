"""From the bytes of a body to its schema; where they do not fit, msgspec's errors in our own words."""

import functools
import re
from typing import NamedTuple, TypeVar

import msgspec

from jaxinfer.serving.bodies.schema import NEUTRAL
from jaxinfer.serving.bodies.unknown_fields import UnknownFields
from jaxinfer.serving.errors import RequestError

Wire = TypeVar("Wire", bound=msgspec.Struct)

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


def decode_body(data: bytes | bytearray, kind: type[Wire], unknown: UnknownFields) -> tuple[Wire, list[str]]:
    """A body, and the names of the fields that are ignored. Raises RequestError with the field's name."""
    try:
        body, ignored = unknown.decode(data, kind)
    except msgspec.ValidationError as error:
        wrong = explain(str(error))
        raise RequestError(wrong.message, param=wrong.param) from None
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8: {error.reason}", code="invalid_json") from None
    except (msgspec.DecodeError, RecursionError) as error:
        problem = f"is not valid JSON: {error}" if data.strip() else "is empty; a JSON object is needed"
        raise RequestError(f"the body {problem}", code="invalid_json") from None
    check_supported(body)
    return body, ignored


def check_supported(body: msgspec.Struct) -> None:
    """Raises RequestError for a parameter that is known, but not supported yet."""
    for name in _not_supported(type(body)):
        value = getattr(body, name)
        if value is not None and value not in NEUTRAL[name]:
            raise RequestError(f"{name} is not supported yet", param=name, code="unsupported_parameter")


@functools.cache
def _not_supported(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name in NEUTRAL)


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
