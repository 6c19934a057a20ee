"""How many requests may be under way at once, those included that wait for their prompt to be rendered."""

from aiohttp import web
from aiohttp.typedefs import Middleware

from jaxinfer.server.errors import ApiError, Handler

RETRY_SECONDS = 1


def make_admission_middleware(limit: int) -> Middleware:
    """Answers 429 to a POST while `limit` others are under way. Reading, health and metrics are never refused."""
    under_way = 0

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal under_way
        if request.method != "POST":
            return await handler(request)
        if under_way >= limit:
            message = f"{limit} requests are under way already; try again in {RETRY_SECONDS} s"
            raise ApiError(429, message, kind="rate_limit_error", code="too_many_requests", retry_after=RETRY_SECONDS)
        under_way += 1
        try:
            return await handler(request)
        finally:
            under_way -= 1

    return check
