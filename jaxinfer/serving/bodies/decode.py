"""From the bytes of a body to its schema."""

import functools
from typing import TypeVar

import msgspec

from jaxinfer.serving.bodies.schema import NEUTRAL, NotSupported
from jaxinfer.serving.bodies.unknown_fields import UnknownFields
from jaxinfer.serving.bodies.wrong_values import explain
from jaxinfer.serving.errors import RequestError

Wire = TypeVar("Wire", bound=msgspec.Struct)


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
        if value is not None and value not in NEUTRAL.get(name, ()):
            raise RequestError(f"{name} is not supported yet", param=name, code="unsupported_parameter")


@functools.cache
def _not_supported(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name in NotSupported.__struct_fields__)
