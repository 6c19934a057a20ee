"""HostFollower: a follower's end of the stream from host 0."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import grpc
import msgspec

from jaxinfer.engine.device.call_stream import CallStreamError
from jaxinfer.engine.device.follower import Follower, FollowerError
from jaxinfer.engine.watchdog import Watchdog
from jaxinfer.hosts import messages
from jaxinfer.hosts.access import check_access
from jaxinfer.hosts.agreement import Agreement
from jaxinfer.hosts.errors import HostsError, failure_text
from jaxinfer.hosts.facts import Facts
from jaxinfer.hosts.messages import KEY_NAME, METHOD, SERVICE, encode
from jaxinfer.hosts.timing import TIMING, HostTiming
from jaxinfer.hosts.watching import Watch
from jaxinfer.rpc.channel import OPTIONS

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.2
_CLOSE_SECONDS = 1.0
_REPORTED_CALLS = 16
"""A report comes after so many calls at most, or with the next step that is collected."""


class _StreamError(NamedTuple):
    """End of a stream. lasting: another attempt would end so, too."""

    details: str
    lasting: bool


_Answer = messages.Accepted | messages.Refused | _StreamError
"""To a Join."""


class HostFollower:
    """Joins host 0, agrees with it, and performs its calls; watches it all the while.

    facts, lost: as of a HostLeader. `lost` is called in a thread of its own, since `run` may wait for a device that
    waits for a host that is lost.
    """

    def __init__(
        self,
        num_hosts: int,
        host_id: int,
        facts: Facts,
        *,
        lost: Callable[[str], None],
        key: str | None = None,
        timing: HostTiming = TIMING,
    ):
        self._host_id = host_id
        self._join = messages.Join(host_id, num_hosts, dict(facts))
        self._key = key
        self._timing = timing
        self._silence: Watchdog | None = None
        """Watchdog of host 0, once it has answered."""
        self._answer: _Answer | None = None
        self._agreed: dict[str, messages.Agreed] = {}
        self._calls: deque[bytes] = deque()
        self._outbox: deque[messages.Up] = deque()
        self._progress = messages.Progress(0, 0, None, False, False)
        self._reported = self._progress
        self._compiling: Callable[[], bool] = lambda: False
        self._told = False
        """Host 0 knows why this one leaves, or is not there. It answers: a call that is cancelled may lose messages."""
        self._is_leaving = False
        self._ended = False
        """Host 0 has ended in order."""
        self._channel: grpc.Channel | None = None
        self._call: Any = None
        self._reading: threading.Thread | None = None
        self._attempt = 0
        """To join; those before are over."""
        interval = min(timing.silence / 12, timing.heartbeat)
        self._watch = Watch(lost, check=self._complaint, told=self._is_told, interval=interval)
        self._changed = self._watch.changed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(failure_text(error))
        self.close()

    def join(self, address: str) -> Facts:
        """Joins host 0 at HOST:PORT, which may come later; returns its decisions. Raises HostsError, and ParameterError
        where a key is needed."""
        check_access(address, self._key)
        deadline = time.monotonic() + self._timing.join
        while True:
            answer = self._ask_to_join(address, deadline)
            if isinstance(answer, messages.Accepted):
                return answer.decisions
            if isinstance(answer, messages.Refused):
                raise HostsError(f"host 0 at {address} has refused host {self._host_id}: {answer.reason}")
            why, lasting = answer or _StreamError("no answer", lasting=False)
            if lasting or time.monotonic() + _RETRY_SECONDS > deadline:
                raise HostsError(f"host {self._host_id} cannot join host 0 at {address}: {why}")
            time.sleep(_RETRY_SECONDS)

    def agree(self, phase: str, facts: Facts, counts: Sequence[int] = ()) -> Agreement:
        """Reports the end of a phase, and waits until all hosts have come there. Raises HostLostError, as on all hosts,
        where facts differ."""
        with self._changed:
            self._outbox.append(messages.Ready(phase, dict(facts), tuple(counts)))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._over or phase in self._agreed, self._timing.ready)
            if phase not in self._agreed and not self._over:
                self._watch.lose(f"host {self._host_id}: host 0 is not {phase} within {self._timing.ready:g} s")
            if phase not in self._agreed:
                raise self._watch.error() if self._watch.over else HostsError("host 0 has ended")
            agreed = self._agreed[phase]
        return Agreement(agreed.decisions, agreed.counts)

    def run(self, follower: Follower) -> None:
        """Performs calls until host 0 ends in order. Raises HostLostError."""
        self._compiling = lambda: follower.compiling
        while self._await_call(follower):
            message = self._calls.popleft() if self._calls else None
            try:
                if message is None:
                    follower.drain()
                else:
                    follower.apply(message)
            except (CallStreamError, FollowerError) as error:
                self._watch.lose(f"host {self._host_id}: {error}")
                raise self._watch.error() from error
            self._note_progress(follower)

    @property
    def lost_reason(self) -> str | None:
        """Why a host is lost; None while none is."""
        return self._watch.reason

    def fail(self, reason: str) -> None:
        """End all hosts because this one has failed, as `HostLeader.fail` does."""
        self._watch.fail(f"host {self._host_id} has failed: {reason}")

    def close(self) -> None:
        """Leaves; for the others this host is lost then, unless host 0 has ended."""
        self._watch.close()
        with self._changed:
            self._changed.wait_for(self._is_told, _CLOSE_SECONDS)
        self._hang_up()

    # With the condition held

    @property
    def _over(self) -> bool:
        return self._watch.over or self._ended

    def _is_told(self) -> bool:
        return self._told or self._ended or self._call is None

    def _complaint(self) -> str | None:
        if self._silence is not None and not self._ended and self._silence.expired():
            return f"host {self._host_id}: host 0 was silent for {self._silence.seconds:g} s"
        return None

    # Calls

    def _await_call(self, follower: Follower) -> bool:
        """True where there is a call, or where steps in flight have waited for long; False at the end."""
        with self._changed:
            while not self._calls:
                if self._ended:
                    return False
                due = self._changed.wait_for(lambda: self._over or bool(self._calls), self._timing.heartbeat)
                if self._watch.over:
                    raise self._watch.error()
                if not due and follower.num_in_flight:
                    break
            if self._watch.over:
                raise self._watch.error()
            self._progress = msgspec.structs.replace(self._progress, busy=True)
        return True

    def _note_progress(self, follower: Follower) -> None:
        stream, collected = follower.stream, follower.collected
        with self._changed:
            self._progress = messages.Progress(stream.number, stream.digest, collected, False, False)
            if self._is_report_due():
                self._changed.notify_all()

    def _is_report_due(self) -> bool:
        """A report costs host 0 as much as sending a step: one a step is enough."""
        own, reported = self._progress, self._reported
        return own.collected != reported.collected or own.applied - reported.applied >= _REPORTED_CALLS

    # The stream, in threads of gRPC and one of its own

    def _ask_to_join(self, address: str, deadline: float) -> _Answer | None:
        """Make one attempt to join, and return the answer; None if there is no answer in time."""
        self._hang_up()
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        method = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
        metadata = () if self._key is None else ((KEY_NAME, self._key),)
        with self._changed:
            self._answer, self._told = None, False
            self._call = method(self._requests(self._attempt), metadata=metadata)
            self._reading = threading.Thread(target=self._read, args=(self._call,), name="hosts-read", daemon=True)
            self._reading.start()
            self._changed.wait_for(lambda: self._watch.over or self._answer is not None, deadline - time.monotonic())
            if self._watch.over:
                raise self._watch.error()
            return self._answer

    def _hang_up(self) -> None:
        """Nothing refers to the call afterwards. One that is left to the end of the process may keep it from ending:
        gRPC takes the call's lock as it is deleted, and threads that Python has stopped by then may hold it."""
        with self._changed:
            call, self._call = self._call, None
            channel, self._channel = self._channel, None
            reading, self._reading = self._reading, None
            self._attempt += 1
            self._changed.notify_all()
        if call is not None:
            call.cancel()
        if channel is not None:
            channel.close()
        if reading is not None:
            reading.join(_CLOSE_SECONDS)
            if reading.is_alive():
                log.warning("the stream from host 0 does not end within %g s", _CLOSE_SECONDS)

    def _requests(self, attempt: int) -> Iterator[bytes]:
        yield encode(self._join)
        while (message := self._next_message(attempt)) is not None:
            yield encode(message)

    def _next_message(self, attempt: int) -> messages.Up | None:
        """Waits for it, for a heartbeat at most; None after the last one."""

        def is_due() -> bool:
            return self._over or attempt != self._attempt or bool(self._outbox) or self._is_report_due()

        with self._changed:
            self._changed.wait_for(is_due, self._timing.heartbeat)
            if attempt != self._attempt:
                return None
            if self._over:
                return self._last_message()
            if self._outbox:
                return self._outbox.popleft()
            self._reported = self._progress
            return msgspec.structs.replace(self._progress, compiling=self._compiling())

    def _last_message(self) -> messages.Leave | None:
        if self._told or self._ended or self._is_leaving:
            return None
        self._is_leaving = True
        return messages.Leave(self._watch.reason or f"host {self._host_id} is ending")

    def _read(self, call: Any) -> None:
        ended: _StreamError | None = None
        try:
            for data in call:
                with self._changed:
                    self._take(data)
        except grpc.RpcError as error:
            ended = _stream_error(error)
            error.with_traceback(None)  # it is the call itself, and a part of its own traceback
        with self._changed:
            if call is not self._call:
                return  # it was given up
            self._told = True  # nobody is there
            if self._silence is None:
                self._answer = self._answer or ended or _StreamError("the stream has ended", lasting=False)
            elif not self._ended:
                how = "" if ended is None else f": {ended.details}"
                self._watch.lose(f"host {self._host_id}: the stream from host 0 has ended{how}")
            self._changed.notify_all()

    def _take(self, data: bytes) -> None:
        try:
            message = messages.decode_down(data)
        except msgspec.DecodeError as error:
            self._watch.lose(f"host {self._host_id}: a message of host 0 cannot be read: {error}")
            return
        if self._silence is not None:
            self._silence.feed()
        match message:
            case messages.Calls(calls):
                self._calls.extend(calls)
            case messages.Accepted():
                self._answer = message
                self._silence = Watchdog(self._timing.silence_at(serving=False))
            case messages.Refused():
                self._answer = message
            case messages.Agreed():
                self._agreed[message.phase] = message
            case messages.Serve():
                self._silence = Watchdog(self._timing.silence_at(serving=True))
            case messages.Lost(reason):
                self._told = True  # host 0 knows
                self._watch.lose(reason)
            case messages.End():
                self._ended = True
            case messages.Beat():
                return
        self._changed.notify_all()


def _stream_error(call: Any) -> _StreamError:
    """Return the error of a call that was raised. Another one may fare better if the server could not be reached; a
    server that does not know the method, or the key, stays so."""
    return _StreamError(call.details() or "", lasting=call.code() is not grpc.StatusCode.UNAVAILABLE)
