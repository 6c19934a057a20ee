"""Values that an HTTP request keeps while it is handled: its key, its id, its fields without effect."""

import uuid
from collections.abc import Sequence

from aiohttp import web

from jaxinfer.serving.bodies.schema import GenerateBody
from jaxinfer.serving.context import Caller, Context
from jaxinfer.serving.deadline import client_timeout
from jaxinfer.serving.requests.endpoint import checked_id, has_no_effect, is_allowed_id

CONTEXT = web.AppKey("context", Context)
API_KEY = web.RequestKey("api_key", str)
"""Key by which a request came in; `` if none is asked for."""

REQUEST_ID = web.RequestKey("request_id", str)
"""Id of a request, for the response's header."""

IGNORED_FIELDS = web.RequestKey("ignored_fields", list)
"""Names of a request's fields without effect, for the response's header."""


def caller_of(request: web.Request) -> Caller:
    """Who sent a request, for the engine requests that are made of it."""
    key, name = request.get(API_KEY, ""), request.get(REQUEST_ID)
    timeout = client_timeout(request.headers)
    return Caller(key, name, request.headers, lambda field, reason: _report_ignored(request, field, reason), timeout)


def _report_ignored(request: web.Request, name: str, reason: str) -> None:
    """Reports a field that has no effect here. Raises RequestError where the policy is to refuse such fields."""
    if request.app[CONTEXT].unknown_fields.refuses:
        raise has_no_effect(name, reason)
    keep_ignored(request, [name])


def keep_ignored(request: web.Request, names: Sequence[str]) -> None:
    """Logs fields without effect, and keeps those that the response's header lists."""
    reported = request.app[CONTEXT].unknown_fields.report(names)
    if reported:
        request[IGNORED_FIELDS] = [*request.get(IGNORED_FIELDS, []), *reported]


def reply_id(prefix: str, request: web.Request, body: GenerateBody) -> str:
    """A reply's name: `prefix` and what the request calls itself (`request_id`, `X-Request-Id`), else one of its own.

    The header X-Request-Id of the response tells it. body: was checked. Raises RequestError.
    """
    chosen, given = body.request_id, request.headers.get("X-Request-Id")
    if chosen is None:
        chosen = uuid.uuid4().hex if given is None else checked_id(given, "X-Request-Id")
    request[REQUEST_ID] = chosen
    return prefix + chosen


def told_id(request: web.BaseRequest) -> str | None:
    """Return the id for the response's X-Request-Id: the reply's, or that of the request if there is no reply."""
    given = request.headers.get("X-Request-Id", "")
    return request.get(REQUEST_ID) or (given if is_allowed_id(given) else None)


def ensured_id(request: web.BaseRequest) -> str:
    """Return the id of a request, which gets one where it has none."""
    name = request[REQUEST_ID] = told_id(request) or uuid.uuid4().hex
    return name
