"""Calls: the Generate calls of one process that are under way, of every service, by request id."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator

from jaxinfer.serving.admission import RequestLimit
from jaxinfer.serving.errors import ErrorKind, RequestError
from jaxinfer.serving.requests.endpoint import checked_id


class OpenCalls:
    """Lets calls in, and ends them by id. Ids need not be the only ones of their kind."""

    def __init__(self, admission: RequestLimit):
        self._admission = admission
        self._open: dict[str, list[asyncio.Timeout]] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.asynccontextmanager
    async def generating(self, given: str | None) -> AsyncIterator[str]:
        """A Generate call, and its request's id. given: what the client calls it; None: it gets a name.

        Raises RequestError for a wrong id, for too many calls, and where the call was aborted.
        """
        name = uuid.uuid4().hex if given is None else checked_id(given, "request_id")
        # A timeout that nobody has set yet is a cancellation that is told from the client's own.
        scope = asyncio.timeout(None)
        with self._admission.place(), self._known(name, scope):
            try:
                async with scope:
                    yield name
            except TimeoutError:
                if not scope.expired():
                    raise
                raise RequestError("the request was aborted", kind=ErrorKind.ABORTED, code="aborted") from None

    def abort(self, name: str) -> int:
        """Ends the calls of an id; how many there were."""
        calls = [scope for scope in self._open.get(name, []) if not scope.expired()]
        for scope in calls:
            scope.reschedule(0.0)
        return len(calls)

    async def wait_idle(self) -> None:
        """Waits until no Generate call is under way."""
        await self._idle.wait()

    @contextlib.contextmanager
    def _known(self, name: str, scope: asyncio.Timeout) -> Iterator[None]:
        self._open.setdefault(name, []).append(scope)
        self._idle.clear()
        try:
            yield
        finally:
            self._open[name].remove(scope)
            if not self._open[name]:
                del self._open[name]
            if not self._open:
                self._idle.set()
