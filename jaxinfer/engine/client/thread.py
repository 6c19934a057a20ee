"""EngineThread: the one thread that steps an engine core, and its commands from outside."""

import atexit
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from jaxinfer.engine.client.fair_executor import FairExecutor
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.scheduler.queue_limit import TenantCounts
from jaxinfer.engine.stats.counters import EngineStats
from jaxinfer.engine.stats.step_timer import IDLE
from jaxinfer.engine.types import GenerateRequest, ModelInfo, StepOutput
from jaxinfer.engine.validation import CheckedRequest
from jaxinfer.engine.watchdog import Watchdog, dump_stacks
from jaxinfer.errors import EngineDeadError, JaxinferError, ParameterError, QueueFullError

log = logging.getLogger(__name__)

_REPORT_SECONDS = 1.0
_EXIT_SECONDS = 5.0
_COMPILERS, _COMPILER_SECONDS = 2, 30.0
"""Threads that compile what requests may say, and seconds that a request waits for one."""


class Listener(Protocol):
    """Is told, in the engine's thread, what its requests come to; must not block it."""

    def on_outputs(self, outputs: Sequence[StepOutput]) -> None:
        """Receive the outputs of steps."""

    def on_error(self, client_id: int, request_id: str, error: JaxinferError) -> None:
        """A submitted request could not be queued."""

    def on_compiled(self, client_id: int, request: GenerateRequest, refused: JaxinferError | None) -> None:
        """A request for which `submit` was False is queued, or will not be. Called in any thread."""

    def on_forgotten(self, client_id: int) -> None:
        """`forget` is done: no output of that client's earlier requests follows."""

    def on_death(self) -> None:
        """The engine has failed, and every request with it."""


class _Compiling(NamedTuple):
    """A request that is to be queued once what it may say is compiled. submitted: seconds of the monotonic clock."""

    checked: CheckedRequest
    client_id: int
    submitted: float

    @property
    def request_id(self) -> str:
        return self.checked.request.request_id


class EngineThread:
    """Runs an engine. `start` comes first; every other method may be called in any thread, and none of them waits.

    A step that takes longer than the core's `step_timeout` is the engine's death. Its thread stays where it is. clock:
    seconds, of what requests wait for a compiler.

    Requests are submitted for a client, whose id comes back in their sequence ids (client_ids.py).
    """

    def __init__(self, core: EngineCore, listener: Listener, clock: Callable[[], float] = time.monotonic):
        self._core = core
        self._clock = clock
        self._listener = listener
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._submitted = TenantCounts()
        self._compiling: dict[str, _Compiling] = {}
        self._compiler = FairExecutor(_COMPILERS, _COMPILER_SECONDS, "jaxinfer-grammar")
        # Of its own: what is compiled already waits for no grammar that takes long, as one that is refused does.
        self._finder = ThreadPoolExecutor(1, thread_name_prefix="jaxinfer-kept-grammar")
        self._dead: BaseException | None = None
        self._closing = False
        self._idle = True
        self._turns = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jaxinfer-engine", daemon=True)
        self._at_exit = partial(_end_with_python, weakref.ref(self))

    def start(self) -> None:
        """Lets the engine run. One that nobody has closed ends before Python does, and before JAX's own end."""
        self._thread.start()
        atexit.register(self._at_exit)
        if self._core.step_timeout:
            threading.Thread(target=self._watch, name="jaxinfer-watchdog", daemon=True).start()

    @property
    def info(self) -> ModelInfo:
        return self._core.info

    @property
    def alive(self) -> bool:
        """True while requests can be submitted."""
        return self._dead is None and not self._closing

    def submit(self, request: GenerateRequest, client_id: int = 0) -> bool:
        """Queues a request. Raises ParameterError, QueueFullError, EngineDeadError.

        False where what it may say is compiled first: `on_compiled` tells when that is done, and the request is queued
        in the place of its arrival.
        """
        if not self.alive:
            raise EngineDeadError("the engine has stopped") from self._dead
        checked = self._core.check(request)
        tenant = self._core.tenant_of(request)
        with self._lock:
            if request.request_id in self._compiling:
                raise ParameterError("request_id", f"{request.request_id!r} is in use")
            self._core.check_room(request, self._submitted)
            self._submitted.add(tenant)
            if checked.is_constrained:
                self._compile_soon(checked, client_id)
                return False
        self._commands.put(lambda: self._add(checked, client_id))
        return True

    def _compile_soon(self, checked: CheckedRequest, client_id: int) -> None:
        compiling = self._compiling[checked.request.request_id] = _Compiling(checked, client_id, self._clock())
        tenant, run = self._core.tenant_of(checked.request), partial(self._compile, compiling)
        try:
            if self._core.is_kept(checked):
                self._finder.submit(run)
            else:
                self._compiler.submit(tenant[:1], run, partial(self._give_up, compiling))
        except (RuntimeError, QueueFullError) as error:
            del self._compiling[compiling.request_id]
            self._submitted.remove(tenant)
            if isinstance(error, QueueFullError):
                raise
            raise EngineDeadError("the engine has stopped") from None  # closed a moment ago

    def stop(self, request_id: str, index: int) -> None:
        """Ends one sequence because of a stop string."""
        self._commands.put(lambda: self._core.stop(request_id, index))

    def abort(self, request_id: str) -> None:
        """Ends every sequence of a request."""
        with self._lock:
            compiling = self._compiling.get(request_id)
        if compiling is not None and self._give_up(compiling, JaxinferError("the request was aborted")):
            return
        self._commands.put(lambda: self._core.abort(request_id))

    def forget(self, client_id: int) -> None:
        """Aborts the requests of a client that has gone; `on_forgotten` follows their last output."""
        for compiling in list(self._compiling.values()):
            if compiling.client_id == client_id:
                self._give_up(compiling, JaxinferError("its client has gone"))
        self._commands.put(lambda: self._forget(client_id))

    def stats(self) -> EngineStats:
        """The newest reading; what the engine has not taken up yet waits, too."""
        stats, coming = self._core.stats(), self._submitted.total
        now = stats.scheduler
        now = replace(now, waiting=now.waiting + coming, waiting_for_step=now.waiting_for_step + coming)
        return replace(stats, scheduler=now)

    def close(self) -> None:
        """Aborts everything, tells it, and frees the device; `join` waits for it."""
        if not self._closing:
            self._closing = True
            # First, so that what another thread is submitting is refused there, or found below.
            self._compiler.shutdown()
            self._finder.shutdown(wait=False, cancel_futures=True)
            for compiling in list(self._compiling.values()):
                self._give_up(compiling, EngineDeadError("the engine has stopped"))
            self._commands.put(self._core.abort_all)
            self._commands.put(None)

    def join(self) -> None:
        """Waits until the thread has ended, or has stalled."""
        self._over.wait()
        atexit.unregister(self._at_exit)

    # In a thread of its own

    def _compile(self, compiling: "_Compiling") -> None:
        if self._compiling.get(compiling.request_id) is not compiling:
            return
        try:
            checked = self._core.compile(compiling.checked)
        except JaxinferError as error:
            self._give_up(compiling, error)
        except BaseException as error:  # whatever is wrong with one grammar ends no other; a library may panic
            log.exception("what request %s may say could not be compiled", compiling.request_id)
            name = type(error).__name__
            self._give_up(compiling, JaxinferError(f"what the request may say could not be compiled: {name}"))
        else:
            self._queue(compiling, checked)

    def _queue(self, compiling: "_Compiling", checked: CheckedRequest) -> None:
        with self._lock:
            if self._compiling.get(compiling.request_id) is not compiling:
                return
            del self._compiling[compiling.request_id]
            checked = _waited(checked, self._clock() - compiling.submitted)
            self._commands.put(lambda: self._add(checked, compiling.client_id))
        self._listener.on_compiled(compiling.client_id, checked.request, None)

    def _give_up(self, compiling: "_Compiling", error: JaxinferError) -> bool:
        """False where it is queued already, or was given up before."""
        with self._lock:
            if self._compiling.get(compiling.request_id) is not compiling:
                return False
            del self._compiling[compiling.request_id]
            self._submitted.remove(self._core.tenant_of(compiling.checked.request))
        self._listener.on_compiled(compiling.client_id, compiling.checked.request, error)
        return True

    def _forget_submitted(self, checked: CheckedRequest) -> None:
        with self._lock:
            self._submitted.remove(self._core.tenant_of(checked.request))

    # In the engine's thread

    def _run(self) -> None:
        self._core.timer.end(IDLE)  # until now there was nothing to do
        try:
            while self._run_commands():
                if self._core.has_work():
                    self._step()
            while self._core.has_work():
                self._step()
            self._core.close()
        except BaseException as error:
            if self._dead is None:
                log.error("the engine has stopped: %s", error, exc_info=not isinstance(error, JaxinferError))
                self._dead = error
                self._listener.on_death()
            self._close_core()
        finally:
            self._over.set()

    def _step(self) -> None:
        outputs = self._core.step()
        self._turns += 1
        if self._dead is not None:  # it has stalled, which was told; what comes now comes too late
            raise self._dead
        if outputs:
            self._listener.on_outputs(outputs)

    def _close_core(self) -> None:
        """Frees what a broken device still holds, where it can."""
        try:
            self._core.close()
        except Exception:
            log.exception("the device could not be closed")

    def _run_commands(self) -> bool:
        """Runs what is queued, waiting for the first where there is no work. False once the thread shall end."""
        while True:
            try:
                command = self._commands.get_nowait() if self._core.has_work() else self._wait_for_command()
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _wait_for_command(self) -> Callable[[], None] | None:
        self._core.timer.wait()
        self._idle = True
        command = self._commands.get()
        self._idle = False
        self._turns += 1
        self._core.timer.end(IDLE)
        return command

    def _add(self, checked: CheckedRequest, client_id: int) -> None:
        request = checked.request
        # An id that ended a moment ago is taken until its last result in flight is read.
        while self._core.is_retiring(request.request_id):
            self._step()
        try:
            self._core.add(checked, client_id=client_id)
        except JaxinferError as error:
            self._listener.on_error(client_id, request.request_id, error)
        except Exception as error:  # whatever is wrong with one request ends no other
            log.exception("request %s could not be queued", request.request_id)
            failure = JaxinferError(f"the request could not be queued: {type(error).__name__}")
            self._listener.on_error(client_id, request.request_id, failure)
        return self._forget_submitted(checked)

    def _forget(self, client_id: int) -> None:
        self._core.abort_client(client_id)
        self._step()
        self._listener.on_forgotten(client_id)

    # In the watchdog's thread

    def _watch(self) -> None:
        """Ends the engine where a step stalls. Compiling, which may take minutes, is none."""
        watchdog, turns = Watchdog(self._core.step_timeout), -1
        while not self._over.wait(watchdog.interval):
            if self._idle or self._core.runner.compiling or self._turns != turns:
                turns = self._turns
                watchdog.feed()
            elif watchdog.expired():
                return self._on_stall()
        return None

    def _on_stall(self) -> None:
        # Standard error may be a pipe that nobody reads, and the stalled thread may hold a lock of logging's.
        reporting = threading.Thread(target=self._report_stall, name="jaxinfer-stall", daemon=True)
        reporting.start()
        reporting.join(_REPORT_SECONDS)
        self._dead = TimeoutError(f"a step took more than {self._core.step_timeout:g} s")
        self._listener.on_death()
        self._over.set()

    def _report_stall(self) -> None:
        seconds = self._core.step_timeout
        log.error("a step takes more than %g s (--step-timeout): the engine has stalled, and ends; stacks:", seconds)
        dump_stacks()


def _waited(checked: CheckedRequest, seconds: float) -> CheckedRequest:
    """The request, which has waited for so long of the time that it may."""
    request = checked.request
    if request.max_wait is None:
        return checked
    return checked._replace(request=replace(request, max_wait=max(request.max_wait - seconds, 0.0)))


def _end_with_python(running: "weakref.ref[EngineThread]") -> None:
    """A thread that Python stops within JAX ends the process by SIGABRT, whatever its status was to be."""
    engine = running()
    if engine is not None:
        engine.close()
        engine._over.wait(_EXIT_SECONDS)
