"""LargeMessages: the memory of large messages that are whole, and from which no prompt has been made yet."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from jaxinfer.rpc.reading_places import RETRY_SECONDS
from jaxinfer.serving.bodies.structure import LARGE_BYTES
from jaxinfer.serving.errors import ErrorKind, RequestError


class LargeMessages:
    """At most `limit` bytes of messages that have more than LARGE_BYTES."""

    def __init__(self, limit: int):
        self._limit = limit
        self.used = 0

    @contextlib.contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Counts a message until `forget_message` or the end. Raises RequestError where there is no room for it."""
        if size <= LARGE_BYTES:
            yield
            return
        if self.used + size > self._limit:
            message = f"there is no memory for more large messages; try again in {RETRY_SECONDS} s"
            raise RequestError(message, kind=ErrorKind.BUSY, code="too_many_bodies", retry_after=RETRY_SECONDS)
        with contextlib.ExitStack() as share:
            self.used += size
            share.callback(self._release, size)
            before = _SHARE.set(share)
            try:
                yield
            finally:
                _SHARE.reset(before)

    def _release(self, size: int) -> None:
        self.used -= size


_SHARE: ContextVar[contextlib.ExitStack | None] = ContextVar("large message", default=None)


def forget_message() -> None:
    """This call's message is needed no more, and its caller has dropped it."""
    share = _SHARE.get()
    if share is not None:
        share.close()
