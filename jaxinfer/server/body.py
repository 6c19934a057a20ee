"""Reads a request's body; refuses, by name, what is wrong or not supported."""

import functools
import re
from typing import TypeVar

import msgspec
from aiohttp import web

from jaxinfer.server.context import CONTEXT, IGNORED_FIELDS
from jaxinfer.server.errors import ApiError
from jaxinfer.server.schema import NEUTRAL, NotSupported
from jaxinfer.server.unknown_fields import UnknownFields

Wire = TypeVar("Wire", bound=msgspec.Struct)

_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_PATH = re.compile(r"`\$\.?([^`]*)`$")


async def read_body(request: web.Request, kind: type[Wire]) -> Wire:
    """The body of an endpoint some of whose parameters are not supported yet. Raises ApiError: 400, 413 or 415."""
    body = await read_json(request, kind)
    check_supported(body)
    return body


async def read_json(request: web.Request, kind: type[Wire]) -> Wire:
    """The body as `kind`; fields without effect are kept for the header that reports them. Raises ApiError: 400, 413
    or 415.
    """
    if request.content_type != "application/json":
        message = f"the content type must be application/json, not {request.content_type}"
        raise ApiError(415, message, code="unsupported_media_type")
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise ApiError(415, "compressed bodies are not accepted", code="unsupported_media_type")
    body, ignored = decode_body(await request.read(), kind, request.app[CONTEXT].unknown_fields)
    if ignored:
        request[IGNORED_FIELDS] = ignored
    return body


def decode_body(data: bytes, kind: type[Wire], unknown: UnknownFields) -> tuple[Wire, list[str]]:
    """A body, and the fields that were ignored. Raises ApiError with the field's name."""
    try:
        return unknown.decode(data, kind)
    except msgspec.ValidationError as error:
        raise ApiError(400, str(error), param=_field(str(error))) from None
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: {error.reason}", code="invalid_json") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None


def check_supported(body: msgspec.Struct) -> None:
    """Raises ApiError for a parameter that is known, but not supported yet."""
    for name in _not_supported(type(body)):
        value = getattr(body, name)
        if value is not None and value not in NEUTRAL.get(name, ()):
            raise ApiError(400, f"{name} is not supported yet", param=name, code="unsupported_parameter")


@functools.cache
def _not_supported(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name in NotSupported.__struct_fields__)


def _field(message: str) -> str | None:
    """The field that msgspec complains of: `$.messages[0].role` is `messages[0].role`."""
    path = _PATH.search(message)
    inside = path.group(1) if path else ""
    named = _UNKNOWN.search(message) or _MISSING.search(message)
    if named is None:
        return inside or None
    return f"{inside}.{named.group(1)}" if inside else named.group(1)
