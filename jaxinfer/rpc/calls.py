"""Calls: the Generate calls of one process that are under way, of every service, by request id."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

import grpc

from jaxinfer.rpc.status import answering
from jaxinfer.serving.admission import Admission
from jaxinfer.serving.errors import ErrorKind, RequestError
from jaxinfer.serving.request_id import checked_id


class Calls:
    """Lets calls in, tells their errors, and ends them by id. Ids need not be the only ones of their kind."""

    def __init__(self, admission: Admission):
        self._admission = admission
        self._open: dict[str, list[asyncio.Timeout]] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.asynccontextmanager
    async def generating(self, call: grpc.aio.ServicerContext, given: str | None) -> AsyncIterator[str]:
        """A Generate call, and its request's id. given: what the client calls it; None: it gets a name.

        What is raised inside ends the call with its status, and so do a wrong id and too many calls.
        """
        async with answering(call):
            name = uuid.uuid4().hex if given is None else checked_id(given, "request_id")
            with self._admission.place():
                async with self._abortable(name):
                    yield name

    @contextlib.asynccontextmanager
    async def working(self, call: grpc.aio.ServicerContext) -> AsyncIterator[None]:
        """A short call that uses the model's text side."""
        async with answering(call):
            with self._admission.place():
                yield

    def abort(self, name: str) -> int:
        """Ends the calls of an id; how many there were."""
        calls = [scope for scope in self._open.get(name, []) if not scope.expired()]
        for scope in calls:
            scope.reschedule(0.0)
        return len(calls)

    async def wait_idle(self) -> None:
        """Waits until no Generate call is under way."""
        await self._idle.wait()

    @contextlib.asynccontextmanager
    async def _abortable(self, name: str) -> AsyncIterator[None]:
        # A timeout that nobody has set yet is a cancellation that is told from the client's own.
        scope = asyncio.timeout(None)
        self._open.setdefault(name, []).append(scope)
        self._idle.clear()
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise RequestError("the request was aborted", kind=ErrorKind.ABORTED, code="aborted") from None
        finally:
            self._forget(name, scope)

    def _forget(self, name: str, scope: asyncio.Timeout) -> None:
        self._open[name].remove(scope)
        if not self._open[name]:
            del self._open[name]
        if not self._open:
            self._idle.set()
