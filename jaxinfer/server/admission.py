"""How many requests may be under way at once, those included that wait for their prompt to be rendered."""

import contextlib
from collections.abc import Callable, Iterator

from aiohttp import web
from aiohttp.typedefs import Middleware

from jaxinfer.server.errors import ApiError, Handler

RETRY_SECONDS = 1


class Admission:
    """At most `limit` requests at once in this process, however they came. on_refused: called for each other one."""

    def __init__(self, limit: int, on_refused: Callable[[], None] = lambda: None):
        self._limit = limit
        self._on_refused = on_refused
        self._under_way = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Holds a place. Raises ApiError 429 where there is none."""
        if self._under_way >= self._limit:
            self._on_refused()
            message = f"{self._limit} requests are under way already; try again in {RETRY_SECONDS} s"
            raise ApiError(429, message, kind="rate_limit_error", code="too_many_requests", retry_after=RETRY_SECONDS)
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1


def make_admission_middleware(admission: Admission) -> Middleware:
    """A place for every POST. Reading, health and metrics are never refused."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "POST":
            return await handler(request)
        with admission.place():
            return await handler(request)

    return check
