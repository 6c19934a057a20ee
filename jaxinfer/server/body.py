"""Reads a request's body and refuses, by name, what is not understood."""

import re
from typing import TypeVar

import msgspec
from aiohttp import web

from jaxinfer.server.errors import ApiError
from jaxinfer.server.schema import NEUTRAL, GenerateBody, NotSupported

Body = TypeVar("Body", bound=GenerateBody)
Wire = TypeVar("Wire", bound=msgspec.Struct)

_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_PATH = re.compile(r"`\$\.?([^`]*)`$")


async def read_body(request: web.Request, kind: type[Body]) -> Body:
    """The body of a generating endpoint. Raises ApiError: 400, 413 or 415."""
    body = await read_json(request, kind)
    check_supported(body)
    return body


async def read_json(request: web.Request, kind: type[Wire]) -> Wire:
    """The body as `kind`. Raises ApiError: 400, 413 or 415."""
    if request.content_type != "application/json":
        message = f"the content type must be application/json, not {request.content_type}"
        raise ApiError(415, message, code="unsupported_media_type")
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise ApiError(415, "compressed bodies are not accepted", code="unsupported_media_type")
    return decode_body(await request.read(), kind)


def decode_body(data: bytes, kind: type[Wire]) -> Wire:
    """Raises ApiError with the field's name."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise ApiError(400, str(error), param=_field(str(error))) from None
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: {error.reason}", code="invalid_json") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None


def check_supported(body: GenerateBody) -> None:
    """Raises ApiError for a parameter that is known, but not supported yet."""
    for name in NotSupported.__struct_fields__:
        value = getattr(body, name)
        if value is not None and value not in NEUTRAL.get(name, ()):
            raise ApiError(400, f"{name} is not supported yet", param=name, code="unsupported_parameter")


def _field(message: str) -> str | None:
    """The field that msgspec complains of: `$.messages[0].role` is `messages[0].role`."""
    path = _PATH.search(message)
    inside = path.group(1) if path else ""
    named = _UNKNOWN.search(message) or _MISSING.search(message)
    if named is None:
        return inside or None
    return f"{inside}.{named.group(1)}" if inside else named.group(1)
