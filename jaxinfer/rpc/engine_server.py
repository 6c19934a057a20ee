"""EngineServer: an engine that API processes attach to."""

import asyncio
import hmac
import logging
import os
import time
from collections.abc import AsyncIterator, Sequence

import grpc

from jaxinfer.engine.client.thread import EngineThread
from jaxinfer.engine.client_ids import split_by_owner
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.types import StepOutput
from jaxinfer.errors import JaxinferError, ParameterError
from jaxinfer.rpc import engine_pb2 as pb
from jaxinfer.rpc import engine_pb2_grpc, wire
from jaxinfer.rpc.channel import KEY_NAME, check_free, options_at

log = logging.getLogger(__name__)

_WRONG_KEY = "the key is missing or wrong; $JAXINFER_ENGINE_KEY must be the same on both sides"

STATS_SECONDS = 0.1
"""How often a session is told the engine's statistics, which change in every step."""


class EngineServer(engine_pb2_grpc.EngineServicer):
    """Serves an engine in the event loop it is started in; the engine has a thread of its own.

    key: what an API process must bring; None where the address is one that nobody else can reach.
    """

    def __init__(self, core: EngineCore, *, key: str | None = None):
        self._engine = EngineThread(core, self)
        self._key = key
        self._sessions: dict[int, _Session] = {}
        self._owners = 0
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
        engine_pb2_grpc.add_EngineServicer_to_server(self, self._server)
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

    async def Attach(
        self, request_iterator: AsyncIterator[pb.Command], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.Event]:
        await self._check_key(context)
        self._owners += 1
        owner, session = self._owners, _Session()
        self._sessions[owner] = session
        reading = asyncio.create_task(self._read(owner, session, request_iterator))
        try:
            stats, told = self._engine.stats(), time.monotonic()
            packed = wire.pack_stats(stats)
            yield pb.Event(hello=pb.Hello(model_info=wire.pack_info(self._engine.info), stats=packed))
            while not session.over:
                for event in await session.events():
                    if time.monotonic() - told >= STATS_SECONDS:
                        newest, told = self._engine.stats(), time.monotonic()
                        if newest != stats:
                            stats = newest
                            event.stats.update(wire.pack_stats(stats))
                    yield event
        finally:
            reading.cancel()
            del self._sessions[owner]
            self._engine.forget(owner)

    async def _check_key(self, context: grpc.aio.ServicerContext) -> None:
        given = dict(context.invocation_metadata() or ()).get(KEY_NAME, "")
        if self._key is not None and not hmac.compare_digest(str(given).encode(), self._key.encode()):
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                _WRONG_KEY,
            )

    async def _read(self, owner: int, session: "_Session", commands: AsyncIterator[pb.Command]) -> None:
        async for command in commands:
            kind = command.WhichOneof("kind")
            if kind == "submit":
                session.put(self._submit(owner, command.submit))
            elif kind == "stop":
                self._engine.stop(command.stop.request_id, command.stop.index)
            elif kind == "abort":
                self._engine.abort(command.abort.request_id)
            elif kind == "read_stats":
                session.put(pb.Event(stats_read=command.read_stats, stats=wire.pack_stats(self._engine.stats())))
        session.end()

    def _submit(self, owner: int, message: pb.Submit) -> pb.Event:
        answer = pb.Answer(request_id=message.request_id)
        try:
            self._engine.submit(wire.unpack_request(message), owner)
        except JaxinferError as error:
            answer.refused.CopyFrom(wire.pack_error(error))
        except ValueError as error:  # what no client of this version sends
            answer.refused.CopyFrom(wire.pack_error(JaxinferError(f"the request is not understood: {error}")))
        return pb.Event(answer=answer)

    # In the engine's thread

    def on_outputs(self, outputs: Sequence[StepOutput]) -> None:
        self._tell(self._deliver, outputs)

    def on_error(self, owner: int, request_id: str, error: JaxinferError) -> None:
        failure = pb.Failure(request_id=request_id, error=wire.pack_error(error))
        self._tell(self._send, owner, pb.Event(failure=failure))

    def on_forgotten(self, owner: int) -> None:
        """Nobody waits for it: the session is gone."""

    def on_death(self) -> None:
        self._tell(self.dead.set)

    def _tell(self, function, *arguments) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function, *arguments)

    # In the event loop

    def _deliver(self, outputs: Sequence[StepOutput]) -> None:
        for owner, own in split_by_owner(outputs, self._sessions).items():
            self._sessions[owner].put_outputs(own)

    def _send(self, owner: int, event: pb.Event) -> None:
        session = self._sessions.get(owner)
        if session is not None:
            session.put(event)


class _Session:
    """What one API process has not been told yet. Steps that wait together go in one message."""

    def __init__(self) -> None:
        self.over = False
        self._events: list[pb.Event | StepOutput] = []
        self._wake = asyncio.Event()

    def put(self, event: pb.Event) -> None:
        self._events.append(event)
        self._wake.set()

    def put_outputs(self, outputs: Sequence[StepOutput]) -> None:
        self._events += outputs
        self._wake.set()

    def end(self) -> None:
        self.over = True
        self._wake.set()

    async def events(self) -> list[pb.Event]:
        """What is due, in order, or after a while an empty event. Waits."""
        try:
            await asyncio.wait_for(self._wake.wait(), STATS_SECONDS)
        except TimeoutError:
            return [pb.Event()]
        self._wake.clear()
        waiting, self._events = self._events, []
        events: list[pb.Event] = []
        outputs: list[StepOutput] = []
        for item in waiting:
            if isinstance(item, StepOutput):
                outputs.append(item)
                continue
            events += _steps(outputs)
            outputs = []
            events.append(item)
        return events + _steps(outputs)


def _steps(outputs: list[StepOutput]) -> list[pb.Event]:
    return [pb.Event(step=wire.pack_step(outputs))] if outputs else []
