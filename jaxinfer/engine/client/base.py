"""EngineClient: what the server knows of an engine, be it in this process or behind a socket."""

from collections.abc import AsyncIterator
from typing import Protocol

from jaxinfer.engine.stats.counters import EngineStats
from jaxinfer.engine.types import GenerateRequest, ModelInfo, TokenDelta


class EngineClient(Protocol):
    """An engine seen from the edge."""

    @property
    def info(self) -> ModelInfo:
        """The model served; constant."""
        ...

    @property
    def ready(self) -> bool:
        """True while requests can be served."""
        ...

    @property
    def lost(self) -> bool:
        """True where requests can never be served again."""
        ...

    async def wait_ready(self) -> None:
        """Wait until requests can be served, or until they never can be again."""
        ...

    async def submit(self, request: GenerateRequest) -> AsyncIterator[list[TokenDelta]]:
        """Queues a request; returns an iterator of what each engine step adds, until every sequence has finished.

        The request is queued when this returns. Errors, raised here and not by the iterator:
        ParameterError (it can never be served), QueueFullError, EngineDeadError. When the engine dies
        later, the iterator raises EngineDeadError. Closing the iterator early does not abort: call `abort`.
        Where this is cancelled, the request is aborted.
        """
        ...

    def stop(self, request_id: str, index: int) -> None:
        """Ends one sequence because of a stop string. Tokens that come after it are the caller's to drop.

        A last delta with finish_reason `stop` and no tokens follows, unless the sequence had ended before.
        """
        ...

    def abort(self, request_id: str) -> None:
        """Ends every sequence of a request and frees its slots and blocks. Unknown ids are ignored.

        A last delta with finish_reason `abort` follows for each sequence that had not ended.
        """
        ...

    def stats(self) -> EngineStats:
        """The newest reading that has come, some tenths of a second old at most; cheap."""
        ...

    async def read_stats(self) -> EngineStats:
        """A reading of now: no older than the call. Raises EngineDeadError."""
        ...

    async def close(self) -> None:
        """Aborts everything and stops the engine."""
        ...
