"""Messages between host 0 and the others: MessagePack, one of them a gRPC message.

`Join` and `Refused` stay as they are in every version, so that hosts of two versions can tell each other so.
"""

from typing import Any

import msgspec

SERVICE, METHOD = "jaxinfer.Hosts", "Join"
"""The one method, a stream of messages each way."""

KEY_NAME = "jaxinfer-hosts-key"
"""Name of the metadata that carries the key."""


class _Message(msgspec.Struct, array_like=True, tag=True):
    """An array that begins with the name of its class."""


class Join(_Message):
    """The first message of a follower. facts: those that are known before it loads anything."""

    host_id: int
    num_hosts: int
    facts: dict[str, str | int]


class Ready(_Message):
    """A follower has come to the end of a phase of its start. counts: numbers of which all take the least."""

    phase: str
    facts: dict[str, str | int]
    counts: tuple[int, ...]


class Progress(_Message):
    """Progress of a follower; its heartbeat. applied, digest: number and digest of its calls so far. collected: the
    call of the last step that was collected. busy: it performs a call, or waits for a step. compiling: as of a
    Runner."""

    applied: int
    digest: int
    collected: int | None
    busy: bool
    compiling: bool


class Leave(_Message):
    """A follower ends, or has failed."""

    reason: str


class Refused(_Message):
    """The answer to a Join; the stream ends."""

    reason: str


class Accepted(_Message):
    """The other answer. decisions: of host 0, which hold for all."""

    decisions: dict[str, str | int]


class Agreed(_Message):
    """All hosts are Ready, with equal facts. counts: the least of all."""

    phase: str
    decisions: dict[str, str | int]
    counts: tuple[int, ...]


class Serve(_Message):
    """From now on calls come, and silence is short."""


class Calls(_Message):
    """Messages of calls, as a LeadingRunner sends them."""

    messages: list[bytes]


class Beat(_Message):
    """Host 0 lives, and has nothing else to send."""


class Lost(_Message):
    """A host is lost, and with it the engine; the stream ends."""

    reason: str


class End(_Message):
    """Host 0 ends in order; so does the stream."""


Up = Join | Ready | Progress | Leave
Down = Refused | Accepted | Agreed | Serve | Calls | Beat | Lost | End

encode = msgspec.msgpack.Encoder().encode
"""The bytes of a message."""
decode_up: Any = msgspec.msgpack.Decoder(Up).decode
"""A message to host 0. As with the next: raises msgspec.DecodeError."""
decode_down: Any = msgspec.msgpack.Decoder(Down).decode
"""A message from host 0."""
