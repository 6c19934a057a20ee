"""EngineServer: an engine that API processes attach to."""

import asyncio
import hmac
import logging
import os
import time
from collections.abc import AsyncIterator, Sequence

import grpc

from jaxinfer.engine.client.thread import EngineThread
from jaxinfer.engine.client_ids import split_by_client
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.types import GenerateRequest, StepOutput
from jaxinfer.errors import JaxinferError, ParameterError
from jaxinfer.rpc import wire
from jaxinfer.rpc.channel import KEY_NAME, METHOD, SERVICE, check_free, options_at

log = logging.getLogger(__name__)

_WRONG_KEY = "the key is missing or wrong; $JAXINFER_ENGINE_KEY must be the same on both sides"

STATS_SECONDS = 0.1
"""Between readings of the engine's statistics, which change in every step, in a session."""


class EngineServer:
    """Serves an engine in the event loop it is started in; the engine has a thread of its own.

    key: what an API process must bring; None where the address is one that nobody else can reach.
    """

    def __init__(self, core: EngineCore, *, key: str | None = None):
        self._engine = EngineThread(core, self)
        self._key = key
        self._sessions: dict[int, _Session] = {}
        self._num_clients = 0
        self._server: grpc.aio.Server
        self._loop: asyncio.AbstractEventLoop | None = None
        self.dead = asyncio.Event()
        """The engine has failed."""

    async def start(self, address: str) -> str:
        """Listens at `unix:PATH` or `HOST:PORT`, and lets the engine run; returns the address with its port.

        Only this user can connect to a path. Raises ParameterError, naming `listen`, where that cannot be.
        """
        self._loop = asyncio.get_running_loop()
        check_free(address)
        self._server = grpc.aio.server(options=options_at(address))
        methods = {METHOD: grpc.stream_stream_rpc_method_handler(self.attach)}
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
        before = os.umask(0o177)
        try:
            port = self._server.add_insecure_port(address)
            await self._server.start()
        except (OSError, RuntimeError):
            raise ParameterError("listen", f"cannot listen on {address}") from None
        finally:
            os.umask(before)
        self._engine.start()
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"

    async def close(self) -> None:
        """Aborts every request, tells it, and frees the device."""
        self._engine.close()
        await asyncio.to_thread(self._engine.join)
        await asyncio.sleep(0)  # what the engine's thread said last
        for session in self._sessions.values():
            session.end()
        await self._server.stop(grace=1.0)

    async def attach(self, frames: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        """One stream an API process: its commands come up, and what they come to goes down.

        The first event is Hello. Requests that are open when the stream ends are aborted. A frame that is damaged ends
        the stream with INVALID_ARGUMENT.
        """
        await self._check_key(context)
        self._num_clients += 1
        client_id, session = self._num_clients, _Session()
        self._sessions[client_id] = session
        reading = asyncio.create_task(self._read(client_id, session, frames))
        try:
            yield wire.encode([wire.Hello(self._engine.info, self._engine.stats())])
            read_at = time.monotonic()
            while not session.over:
                events = await session.events()
                if time.monotonic() - read_at >= STATS_SECONDS:
                    events, read_at = [wire.Stats(self._engine.stats()), *events], time.monotonic()
                yield wire.encode(events)
            if session.complaint:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, session.complaint)
        finally:
            reading.cancel()
            del self._sessions[client_id]
            self._engine.forget(client_id)

    async def _check_key(self, context: grpc.aio.ServicerContext) -> None:
        given = dict(context.invocation_metadata() or ()).get(KEY_NAME, "")
        if self._key is not None and not hmac.compare_digest(str(given).encode(), self._key.encode()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, _WRONG_KEY)

    async def _read(self, client_id: int, session: "_Session", frames: AsyncIterator[bytes]) -> None:
        try:
            async for frame in frames:
                self._take(client_id, session, wire.decode_command(frame))
        except (ValueError, RecursionError) as error:
            log.warning("an API process has sent a frame that is not understood: %s", error)
            session.complaint = f"a frame is not understood: {error}"
        finally:
            session.end()

    def _take(self, client_id: int, session: "_Session", command: wire.Command) -> None:
        match command:
            case wire.Submit():
                if (answer := self._submit(client_id, command)) is not None:
                    session.put(answer)
            case wire.Stop(request_id, index):
                self._engine.stop(request_id, index)
            case wire.Abort(request_id):
                self._engine.abort(request_id)
            case wire.ReadStats(number):
                session.put(wire.Stats(self._engine.stats(), number))

    def _submit(self, client_id: int, frame: wire.Submit) -> wire.Answer | None:
        """None where `on_compiled` answers."""
        try:
            queued = self._engine.submit(wire.unpack_request(frame), client_id)
        except JaxinferError as error:
            return wire.Answer(frame.request_id, wire.pack_error(error))
        except (ValueError, RecursionError) as error:  # what no client of this version sends
            refused = JaxinferError(f"the request is not understood: {error}")
            return wire.Answer(frame.request_id, wire.pack_error(refused))
        return wire.Answer(frame.request_id) if queued else None

    # In the engine's thread

    def on_outputs(self, outputs: Sequence[StepOutput]) -> None:
        self._tell(self._deliver, outputs)

    def on_error(self, client_id: int, request_id: str, error: JaxinferError) -> None:
        self._tell(self._send, client_id, wire.Failure(request_id, wire.pack_error(error)))

    def on_compiled(self, client_id: int, request: GenerateRequest, refused: JaxinferError | None) -> None:
        error = None if refused is None else wire.pack_error(refused)
        self._tell(self._send, client_id, wire.Answer(request.request_id, error))

    def on_forgotten(self, client_id: int) -> None:
        """Nobody waits for it: the session is gone."""

    def on_death(self) -> None:
        self._tell(self.dead.set)

    def _tell(self, function, *arguments) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function, *arguments)

    # In the event loop

    def _deliver(self, outputs: Sequence[StepOutput]) -> None:
        for client_id, own in split_by_client(outputs, self._sessions).items():
            self._sessions[client_id].put(wire.Step(own))

    def _send(self, client_id: int, event: wire.Event) -> None:
        session = self._sessions.get(client_id)
        if session is not None:
            session.put(event)


class _Session:
    """Queue of the events that one API process has not been sent yet."""

    def __init__(self) -> None:
        self.over = False
        self.complaint = ""
        """Error of the frame that ended the session; empty if it ended well."""
        self._events: list[wire.Event] = []
        self._wake = asyncio.Event()

    def put(self, event: wire.Event) -> None:
        self._events.append(event)
        self._wake.set()

    def end(self) -> None:
        self.over = True
        self._wake.set()

    async def events(self) -> list[wire.Event]:
        """Wait for events and return them in order; an empty list after a while without any."""
        try:
            await asyncio.wait_for(self._wake.wait(), STATS_SECONDS)
        except TimeoutError:
            return []
        self._wake.clear()
        events, self._events = self._events, []
        return events
