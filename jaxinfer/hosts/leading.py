"""HostLeader: host 0's end of the streams to the others."""

import contextlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, Self

import grpc
import msgspec

from jaxinfer.engine.device.call_stream import read_header
from jaxinfer.errors import ParameterError
from jaxinfer.hosts import messages
from jaxinfer.hosts.access import WRONG_KEY, check_access, is_loopback, key_accepted
from jaxinfer.hosts.agreement import Agreement
from jaxinfer.hosts.errors import failure_text
from jaxinfer.hosts.facts import Facts, describe, differences, least
from jaxinfer.hosts.member import HostState, Member
from jaxinfer.hosts.messages import METHOD, SERVICE, encode
from jaxinfer.hosts.timing import TIMING, HostTiming
from jaxinfer.hosts.watching import Watch
from jaxinfer.rpc.channel import OPTIONS

log = logging.getLogger(__name__)

MOST_BEHIND = 64
"""Calls that a follower may be behind, about 20 steps."""

_SPARE_THREADS = 8
"""Threads for hosts that are refused."""
_FRAME_BYTES = 16 * 2**20
_KEPT_COLLECTIONS = 256
_CLOSE_SECONDS = 1.0
_REASON_SECONDS = 0.5
"""Seconds that a failed step waits for the news that another host is lost: JAX's own connections often end first."""


class HostLeader:
    """Awaits followers, agrees with them, and sends them calls; watches them all the while.

    facts: those known before anything is loaded; a follower that differs is refused. decisions: are sent to each that
    is accepted. lost: is called once, in a thread of its own, with the reason why a host is lost, after the others were
    sent it. Nothing goes on after that. Every method may be called in any thread.
    """

    def __init__(
        self,
        num_hosts: int,
        facts: Facts,
        *,
        lost: Callable[[str], None],
        key: str | None = None,
        decisions: Facts | None = None,
        timing: HostTiming = TIMING,
        most_behind: int = MOST_BEHIND,
    ):
        self._num_hosts = num_hosts
        self._facts = dict(facts)
        self._decisions = dict(decisions or {})
        self._key = key
        self._timing = timing
        self._most_behind = most_behind
        self._members: dict[int, Member] = {}
        self._all_joined = False
        self._refusals: deque[str] = deque(maxlen=4)
        self._log: deque[bytes] = deque()
        """Calls that some host has not performed yet."""
        self._num_calls = self._num_performed = 0
        """Calls so far, and those that all followers have performed."""
        self._waits_for_room = False
        self._collected_at: OrderedDict[int, float] = OrderedDict()
        """When steps were collected here, by the number of their call."""
        interval = min(timing.silence / 12, timing.step_or_ever / 12, timing.heartbeat)
        self._watch = Watch(lost, check=self._complaint, told=self._all_gone, interval=interval)
        self._changed = self._watch.changed
        # NOTE: to wake a thread takes 5 µs, and more where it runs at once: `send` wakes one, for any number of hosts.
        self._has_news = False
        self._news = self._watch.condition()
        threading.Thread(target=self._wake_all, name="hosts-wake", daemon=True).start()
        self._server: grpc.Server | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(failure_text(error))
        self.close()

    # The start

    def listen(self, address: str) -> str:
        """Lets followers join at HOST:PORT; returns it with its port. Raises ParameterError.

        Where HOST is not this machine alone it listens on all interfaces: the name that others use may not be known
        here.
        """
        check_access(address, self._key)
        host, _, port = address.rpartition(":")
        bound = address if is_loopback(address) else f"[::]:{port}"
        pool = ThreadPoolExecutor(self._num_hosts + _SPARE_THREADS, thread_name_prefix="hosts")
        # NOTE: without gRPC's keepalive: streams have their own, which blames nobody when a machine has slept.
        server = grpc.server(pool, options=OPTIONS)
        methods = {METHOD: grpc.stream_stream_rpc_method_handler(self._serve)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
        try:
            number = server.add_insecure_port(bound)
        except RuntimeError:
            raise ParameterError("coordinator", f"cannot listen on {bound}") from None
        server.start()
        self._server = server
        return f"{host}:{number}"

    def wait_joined(self) -> None:
        """Waits until all have joined. Raises HostLostError, which names those that have not and who was refused; hosts
        that have joined get it, too."""
        end = time.monotonic() + self._timing.join
        with self._changed:
            while not self._changed.wait_for(self._is_joined_or_over, min(self._timing.notice, end - time.monotonic())):
                if time.monotonic() >= end:
                    break
                log.warning("waiting for hosts to join (%g s at most): %s", self._timing.join, self._missing())
            self._check_lost()
            self._all_joined = self._num_members_left() == 0
            if not self._all_joined:
                refused = "".join(f"; refused: {reason}" for reason in self._refusals)
                self._lose(f"hosts that have not joined within {self._timing.join:g} s: {self._missing()}{refused}")

    def _is_joined_or_over(self) -> bool:
        return self._watch.over or self._num_members_left() == 0

    def _missing(self) -> str:
        """Hosts that have not joined."""
        return ", ".join(str(host) for host in range(1, self._num_hosts) if host not in self._members)

    def agree(self, phase: str, facts: Facts, counts: Sequence[int] = (), decisions: Facts | None = None) -> Agreement:
        """Waits until all hosts have come to the end of a phase. Raises HostLostError, on all hosts, where facts differ
        or one is late."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._watch.over or all(phase in each.ready for each in self._members.values()),
                self._timing.ready,
            )
            self._check_lost()
            late = [str(each.host_id) for each in self._members.values() if phase not in each.ready]
            ready = [(each.host_id, each.ready[phase]) for each in self._members.values() if phase in each.ready]
            if late:
                self._lose(f"hosts that are not {phase} within {self._timing.ready:g} s: {', '.join(late)}")
            for host_id, own in ready:
                if found := differences(facts, own.facts):
                    self._lose(f"hosts differ when they are {phase}: {describe(found, 0, host_id)}")
            try:
                fewest = least([counts, *(own.counts for _, own in ready)])
            except ValueError as error:
                self._lose(f"hosts differ when they are {phase}: {error}")
            agreed = messages.Agreed(phase, dict(decisions or {}), fewest)
            self._tell_all(agreed)
        return Agreement(agreed.decisions, agreed.counts)

    def serve(self) -> None:
        """From now on calls may be sent, and silence is short."""
        with self._changed:
            self._check_lost()
            for member in self._members.values():
                member.start_serving()
            self._tell_all(messages.Serve())

    # Serving

    def send(self, message: bytes) -> None:
        """Sends a call to all. Waits where one is too far behind. Raises HostLostError."""
        with self._changed:
            if self._num_calls - self._num_performed >= self._most_behind:
                self._wait_for_room()
            self._check_lost()
            self._log.append(message)
            self._num_calls += 1
            if not self._has_news:
                self._has_news = True
                self._news.notify()

    def note_collected(self, number: int) -> None:
        """The step of a call was collected here."""
        now = time.monotonic()
        with self._changed:
            self._collected_at[number] = now
            if len(self._collected_at) > _KEPT_COLLECTIONS:
                self._collected_at.popitem(last=False)
            for member in self._members.values():
                member.note_collected(number, now)

    def check_failed(self) -> None:
        """A step has failed: raises HostLostError where a host is lost, which may turn out a moment later."""
        with self._changed:
            self._changed.wait_for(lambda: self._watch.over, _REASON_SECONDS)
            self._check_lost()

    def states(self) -> list[HostState]:
        """Return the state of each follower, in the order of host ids."""
        with self._changed:
            return [self._members[host_id].state(self._num_calls) for host_id in sorted(self._members)]

    @property
    def lost_reason(self) -> str | None:
        """Why a host is lost; None while none is."""
        return self._watch.reason

    def fail(self, reason: str) -> None:
        """This host is about to end, and with it the others, which get the reason; `lost` is not called. Without
        effect where a host is lost already."""
        self._watch.fail(f"host 0 has failed: {reason}")

    def close(self) -> None:
        """Ends the streams in order; followers end, too."""
        self._watch.close()
        with self._changed:
            self._changed.wait_for(self._all_gone, _CLOSE_SECONDS)
        if self._server is not None:
            self._server.stop(_CLOSE_SECONDS).wait()

    # With the condition held

    def _num_members_left(self) -> int:
        return self._num_hosts - 1 - len(self._members)

    def _check_lost(self) -> None:
        if self._watch.over:
            raise self._watch.error()

    def _lose(self, reason: str) -> NoReturn:
        self._watch.lose(reason)
        raise self._watch.error()

    def _tell_all(self, message: messages.Down) -> None:
        for member in self._members.values():
            member.outbox.append(message)
        self._changed.notify_all()

    def _all_gone(self) -> bool:
        """Nobody is left to be told, or to miss this host: JAX aborts processes that do."""
        return all(member.gone for member in self._members.values())

    def _complaint(self) -> str | None:
        for member in self._members.values():
            complaint = None if member.gone else member.complaint(self._num_calls)
            if complaint is not None:
                return complaint
        return None

    def _wait_for_room(self) -> None:
        def has_room() -> bool:
            return self._watch.over or self._num_calls - self._num_performed < self._most_behind

        self._waits_for_room = True
        found_room = self._changed.wait_for(has_room, self._timing.send)
        self._waits_for_room = False
        if not found_room:
            slowest = min(self._members.values(), key=lambda member: member.progress.applied)
            behind = self._num_calls - slowest.progress.applied
            self._lose(f"host {slowest.host_id} was {behind} calls behind for {self._timing.send:g} s")

    # In a thread of its own

    def _wake_all(self) -> None:
        """Wakes the streams when there are calls."""
        with self._changed:
            while not self._watch.over:
                self._news.wait_for(lambda: self._has_news or self._watch.over)
                self._has_news = False
                self._changed.notify_all()

    # A follower's stream, in threads of its own

    def _serve(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        given = dict(context.invocation_metadata() or ()).get(messages.KEY_NAME, "")
        if not key_accepted(str(given), self._key):
            log.warning("a host at %s was refused: %s", context.peer(), WRONG_KEY)
            context.abort(grpc.StatusCode.UNAUTHENTICATED, WRONG_KEY)
        member = self._admit(requests, context.peer())
        if member is None:
            return  # it comes again, and finds whoever takes this one's place
        if isinstance(member, str):
            log.warning("a host at %s was refused: %s", context.peer(), member)
            yield encode(messages.Refused(member))
            return
        reading = threading.Thread(target=self._read, args=(member, requests), name="hosts-read", daemon=True)
        reading.start()
        while True:
            message = self._next_message(member)
            if message is None:
                return
            yield encode(message)
            if isinstance(message, messages.Lost | messages.End):
                with self._changed:  # the follower ends the stream, with its process
                    self._changed.wait_for(lambda: member.gone, _CLOSE_SECONDS)
                return

    def _admit(self, requests: Iterator[bytes], peer: str) -> Member | str | None:
        """A new member, or why it is refused; None where this host is ending."""
        try:
            join = messages.decode_up(next(requests))
        except (StopIteration, grpc.RpcError, msgspec.DecodeError) as error:
            return f"the first message cannot be read: {error}"
        with self._changed:
            if isinstance(join, messages.Join):  # one that was started again may come before its end is noticed
                seconds = min(self._timing.silence, self._timing.join)  # silence may be of any length
                self._changed.wait_for(lambda: self._watch.over or join.host_id not in self._members, seconds)
            if self._watch.over:
                return None
            reason = self._refusal(join, peer)
            if reason is not None:
                self._refusals.append(reason)
                return reason
            member = self._members[join.host_id] = Member(join.host_id, peer, self._timing)
            member.outbox.append(messages.Accepted(self._decisions))
            self._changed.notify_all()
            return member

    def _refusal(self, join: Any, peer: str) -> str | None:
        if not isinstance(join, messages.Join):
            return f"the first message is {type(join).__name__}, not Join"
        if join.num_hosts != self._num_hosts:
            return f"num_hosts is {join.num_hosts} on host {join.host_id} and {self._num_hosts} on host 0"
        if not 0 < join.host_id < self._num_hosts:
            return f"host_id {join.host_id} is out of range: 1 to {self._num_hosts - 1} may join host 0"
        if (known := self._members.get(join.host_id)) is not None:
            return f"host_id {join.host_id} has joined already, from {known.peer}; this is another, from {peer}"
        if found := differences(self._facts, join.facts):
            return describe(found, 0, join.host_id)
        return None

    def _next_message(self, member: Member) -> messages.Down | None:
        """Waits for it, for a heartbeat at most; None where the stream has ended."""
        with self._changed:
            due = self._changed.wait_for(lambda: self._has_message(member), self._timing.heartbeat)
            if not due:
                return messages.Beat()
            if member.gone:
                return None
            if self._watch.reason is not None:
                return messages.Lost(self._watch.reason)
            if member.outbox:
                return member.outbox.popleft()
            return self._next_calls(member) if member.sent < self._num_calls else messages.End()

    def _has_message(self, member: Member) -> bool:
        return self._watch.over or member.gone or bool(member.outbox) or member.sent < self._num_calls

    def _next_calls(self, member: Member) -> messages.Calls:
        """All that it was not sent yet, up to some size."""
        taken: list[bytes] = []
        size = 0
        while member.sent < self._num_calls and size < _FRAME_BYTES:
            taken.append(self._log[member.sent - self._num_performed])
            size += len(taken[-1])
            member.sent += 1
        return messages.Calls(taken)

    def _read(self, member: Member, requests: Iterator[bytes]) -> None:
        with contextlib.suppress(grpc.RpcError):  # it was cut
            for data in requests:
                with self._changed:
                    if not self._watch.over:
                        self._take(member, data)
        self._remove(member)

    def _remove(self, member: Member) -> None:
        with self._changed:
            member.gone = True
            if self._all_joined:
                self._watch.lose(f"host {member.host_id}: its stream has ended")
            elif not self._watch.over:
                del self._members[member.host_id]  # it may come again
            self._changed.notify_all()

    def _take(self, member: Member, data: bytes) -> None:
        member.hear()
        try:
            message = messages.decode_up(data)
        except msgspec.DecodeError as error:
            self._watch.lose(f"host {member.host_id}: its message cannot be read: {error}")
            return
        match message:
            case messages.Progress():
                self._take_progress(member, message)
            case messages.Ready():
                member.ready[message.phase] = message
                self._changed.notify_all()
            case messages.Leave(reason):
                if self._all_joined:
                    self._watch.lose(reason)
            case _:
                self._watch.lose(f"host {member.host_id} has sent {type(message).__name__} in the midst of its stream")

    def _take_progress(self, member: Member, progress: messages.Progress) -> None:
        applied, before = progress.applied, member.progress.applied
        if not before <= applied <= member.sent:
            sent = f"{before} were reported before and {member.sent} were sent"
            return self._watch.lose(f"host {member.host_id} reports {applied} calls; {sent}")
        if applied > before:
            number, digest = read_header(self._log[applied - 1 - self._num_performed])
            if digest != progress.digest:
                differ = f"{progress.digest:#010x} on host {member.host_id} and {digest:#010x} on host 0"
                return self._watch.lose(f"the digest of calls up to {number} is {differ}")
        member.report(progress, self._collected_at.get)
        return self._drop_performed()

    def _drop_performed(self) -> None:
        performed = min(member.progress.applied for member in self._members.values())
        if performed > self._num_performed:
            for _ in range(performed - self._num_performed):
                self._log.popleft()
            self._num_performed = performed
            if self._waits_for_room:  # nobody else is woken in every step
                self._changed.notify_all()
