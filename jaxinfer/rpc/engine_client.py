"""RemoteEngineClient: an engine in another process, behind the EngineClient seam."""

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import AsyncIterator

import grpc

from jaxinfer.engine.client.streams import Streams
from jaxinfer.engine.stats.counters import EngineStats
from jaxinfer.engine.types import GenerateRequest, ModelInfo, TokenDelta
from jaxinfer.engine.watchdog import Watchdog
from jaxinfer.errors import EngineDeadError, JaxinferError
from jaxinfer.rpc import wire
from jaxinfer.rpc.channel import KEY_NAME, METHOD, SERVICE, options_at
from jaxinfer.version import __version__

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.1
_CLOSE_SECONDS = 2.0
_STATS_SECONDS = 1.0


class RemoteEngineClient:
    """Attaches to an engine, and again whenever the engine is back. Belongs to the event loop it is made in.

    Where the engine goes every stream ends with EngineDeadError, and `ready` is False until it is back. One that is
    silent for `silence_seconds` has gone, too; 0: it may be silent. It tells something ten times a second.
    """

    def __init__(self, address: str, *, key: str | None = None, silence_seconds: float = 6.0):
        self._address = address
        self._metadata = () if key is None else ((KEY_NAME, key),)
        self._silence_seconds = silence_seconds or math.inf
        self._streams = Streams()
        self._answers: dict[str, asyncio.Future[JaxinferError | None]] = {}
        self._readings: dict[int, asyncio.Future[None]] = {}
        self._numbers = itertools.count()
        self._commands: asyncio.Queue[bytes] = asyncio.Queue()
        self._info: ModelInfo | None = None
        self._stats: EngineStats | None = None
        self._complaint = ""
        self._lost = False
        self._attached = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise EngineDeadError("the engine was never reached")
        return self._info

    @property
    def ready(self) -> bool:
        return self._attached.is_set()

    @property
    def lost(self) -> bool:
        return self._lost

    async def wait_ready(self) -> None:
        attached = asyncio.create_task(self._attached.wait())
        try:
            await asyncio.wait([attached, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            attached.cancel()

    async def submit(self, request: GenerateRequest) -> AsyncIterator[list[TokenDelta]]:
        if not self.ready:
            raise EngineDeadError("the engine has stopped")
        name = request.request_id
        self._streams.check_free(name)
        frame = wire.encode(wire.pack_request(request))
        answer = self._answers[name] = asyncio.get_running_loop().create_future()
        stream = self._streams.open(name, request.sampling.n)  # its first tokens may come with the answer
        self._commands.put_nowait(frame)
        try:
            await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not answer.done() or answer.result() is None:
                self.abort(name)
            raise
        if (refused := answer.result()) is not None:
            raise refused
        return stream

    def stop(self, request_id: str, index: int) -> None:
        self._send(wire.Stop(request_id, index))

    def abort(self, request_id: str) -> None:
        self._send(wire.Abort(request_id))

    def stats(self) -> EngineStats:
        if self._stats is None or not self.ready:
            raise EngineDeadError("the engine has stopped")
        return self._stats

    async def read_stats(self) -> EngineStats:
        if not self.ready:
            raise EngineDeadError("the engine has stopped")
        number = next(self._numbers)
        reading = self._readings[number] = asyncio.get_running_loop().create_future()
        self._send(wire.ReadStats(number))
        try:
            await asyncio.wait_for(reading, _STATS_SECONDS)
        except TimeoutError:
            log.warning("the engine at %s does not tell its statistics; those of before are used", self._address)
        finally:
            self._readings.pop(number, None)
        return self.stats()

    async def close(self) -> None:
        """Aborts what is open, tells its readers, and lets go of the engine, which runs on."""
        for name in self._streams.request_ids:
            self.abort(name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while self.ready and self._streams.request_ids:
                    await asyncio.sleep(0.005)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def _send(self, command: wire.Command) -> None:
        # An engine that has gone has forgotten the request too.
        if self.ready:
            self._commands.put_nowait(wire.encode(command))

    async def _run(self) -> None:
        """Attaches for as long as the client lives."""
        try:
            while not self._lost:
                async with grpc.aio.insecure_channel(self._address, options=options_at(self._address)) as channel:
                    try:
                        await self._attach(channel.stream_stream(f"/{SERVICE}/{METHOD}"))
                    except grpc.aio.AioRpcError as error:
                        # One that was never there may be elsewhere; one that has gone is being started again.
                        elsewhere = self._info is None and not self._address.startswith("unix:")
                        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                            self._complain(f"it is not of version {__version__}")
                        elif error.code() is not grpc.StatusCode.UNAVAILABLE:
                            self._complain(str(error.details()))
                        elif elsewhere:
                            self._complain("cannot be reached yet")
                    except TimeoutError:
                        self._complain(f"silent for {self._silence_seconds:g} s")
                    except Exception as error:
                        self._complain(f"{type(error).__name__}: {error}")
                if self.ready:
                    log.warning("the engine at %s has gone; its requests end, and it is tried again", self._address)
                self._detach()
                await asyncio.sleep(_RETRY_SECONDS)
        finally:
            self._detach()

    def _complain(self, what: str) -> None:
        """Logs what is wrong with the engine, once, however often it is tried."""
        if what != self._complaint:
            log.warning("the engine at %s: %s; it is tried again", self._address, what)
        self._complaint = what

    async def _attach(self, method: grpc.aio.StreamStreamMultiCallable) -> None:
        self._commands = asyncio.Queue()
        call = method(metadata=self._metadata)
        watchdog = Watchdog(self._silence_seconds)
        writing = asyncio.create_task(self._write(call, self._commands))
        reading = asyncio.create_task(self._read(call, watchdog))
        try:
            while not reading.done():
                if watchdog.expired():
                    raise TimeoutError
                await asyncio.wait([reading], timeout=watchdog.interval)
            reading.result()
        finally:
            writing.cancel()
            reading.cancel()
            call.cancel()

    async def _read(self, call: grpc.aio.StreamStreamCall, watchdog: Watchdog) -> None:
        async for frame in call:
            watchdog.feed()
            for event in wire.decode_events(frame):
                self._take(event)

    async def _write(self, call: grpc.aio.StreamStreamCall, frames: asyncio.Queue[bytes]) -> None:
        # A call that has ended says why where it is read.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await call.write(await frames.get())

    def _take(self, event: wire.Event) -> None:
        match event:
            case wire.Step(outputs):
                self._streams.deliver(outputs)
            case wire.Answer(request_id, refused):
                self._take_answer(request_id, refused)
            case wire.Failure(request_id, error):
                self._streams.fail(request_id, wire.unpack_error(error))
            case wire.Stats(stats, number):
                self._take_stats(stats, number)
            case wire.Hello(info, stats):
                self._take_hello(info, stats)

    def _take_answer(self, request_id: str, refused: wire.Error | None) -> None:
        # Whether or not somebody waits for it still.
        answer = self._answers.pop(request_id, None)
        if refused is not None:
            self._streams.forget([request_id])
        if answer is not None:
            answer.set_result(None if refused is None else wire.unpack_error(refused))

    def _take_stats(self, stats: EngineStats, number: int | None) -> None:
        self._stats = stats
        reading = None if number is None else self._readings.get(number)
        if reading is not None and not reading.done():
            reading.set_result(None)

    def _take_hello(self, info: ModelInfo, stats: EngineStats) -> None:
        if self._info is not None and _seen_by_text(info) != _seen_by_text(self._info):
            # Text and limits of this process were made for the other one: another process must begin anew.
            self._lost = True
            raise EngineDeadError(f"it serves another model now: {info}")
        if self._info is not None:
            log.warning("the engine at %s is back", self._address)
        self._info = info
        self._stats = stats
        self._complaint = ""
        self._attached.set()

    def _detach(self) -> None:
        self._attached.clear()
        self._streams.fail_all("the engine has stopped")
        for answer in self._answers.values():
            answer.set_result(EngineDeadError("the engine has stopped"))
        self._answers.clear()
        for reading in self._readings.values():
            if not reading.done():
                reading.set_result(None)


def _seen_by_text(info: ModelInfo) -> tuple[str, int, int, int]:
    """Return the facts that text and limits of an API process depend on; all else may change when the engine
    restarts."""
    return info.name, info.vocab_size, info.max_model_len, info.max_num_seqs
