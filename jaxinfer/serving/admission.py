"""Limit of the requests that run at once, including those that wait for their prompt to be rendered."""

import contextlib
from collections.abc import Callable, Iterator

from jaxinfer.serving.errors import ErrorKind, RequestError

RETRY_SECONDS = 1


class RequestLimit:
    """At most `limit` requests at once in this process, however they came. on_refused: called for each other one."""

    def __init__(self, limit: int, on_refused: Callable[[], None] = lambda: None):
        self._limit = limit
        self._on_refused = on_refused
        self._under_way = 0

    def check(self) -> None:
        """Raises RequestError where there is no place."""
        if self._under_way >= self._limit:
            self._on_refused()
            message = f"{self._limit} requests are under way already; try again in {RETRY_SECONDS} s"
            raise RequestError(message, kind=ErrorKind.BUSY, code="too_many_requests", retry_after=RETRY_SECONDS)

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Holds a place. Raises RequestError where there is none."""
        self.check()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
