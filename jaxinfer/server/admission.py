"""How many requests may be under way at once, those included that wait for their prompt to be rendered."""

import contextlib
from collections.abc import Callable, Iterator

from aiohttp import web
from aiohttp.typedefs import Middleware

from jaxinfer.server.body_budget import BodyBudget
from jaxinfer.server.config import ServerConfig
from jaxinfer.server.errors import ApiError, Handler
from jaxinfer.server.incoming import INCOMING, read_incoming

RETRY_SECONDS = 1


class Admission:
    """At most `limit` requests at once in this process, however they came. on_refused: called for each other one."""

    def __init__(self, limit: int, on_refused: Callable[[], None] = lambda: None):
        self._limit = limit
        self._on_refused = on_refused
        self._under_way = 0

    def check(self) -> None:
        """Raises ApiError 429 where there is no place."""
        if self._under_way >= self._limit:
            self._on_refused()
            message = f"{self._limit} requests are under way already; try again in {RETRY_SECONDS} s"
            raise ApiError(429, message, kind="rate_limit_error", code="too_many_requests", retry_after=RETRY_SECONDS)

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Holds a place. Raises ApiError 429 where there is none."""
        self.check()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1


def make_admission_middleware(admission: Admission, options: ServerConfig, budget: BodyBudget) -> Middleware:
    """A place for every POST whose body has come. Reading, health and metrics are never refused."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "POST" or request.match_info.http_exception is not None:
            return await handler(request)
        # NOTE: a client that is slow to send takes no place. Where there is none its body is not waited for, either.
        admission.check()
        incoming = request[INCOMING] = await read_incoming(request, options, budget)
        try:
            with admission.place():
                return await handler(request)
        finally:
            incoming.forget()

    return check
