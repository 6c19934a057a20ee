"""Frames between an API process and the engine's: MessagePack of the engine's own types.

A message to the engine is one Command, a message from it a list of Events. Decoding checks every type; an array crosses
as its dtype and its bytes. Not a public interface: both ends are of one version of jaxinfer.
"""

from typing import Any, Literal

import msgspec
import numpy as np

from jaxinfer.engine.array_coding import array, plain
from jaxinfer.engine.stats.counters import EngineStats
from jaxinfer.engine.types import GenerateRequest, ModelInfo, StepOutput
from jaxinfer.errors import EngineDeadError, JaxinferError, ParameterError, QueueFullError, WorkerLostError
from jaxinfer.sampling import SamplingParams


class _Frame(msgspec.Struct, array_like=True, tag=True):
    """An array that begins with the name of its class."""


class Submit(_Frame):
    """A GenerateRequest. Its fields are decoded apart, so that a wrong one is refused and the stream goes on."""

    request_id: str
    fields: msgspec.Raw


class Stop(_Frame):
    """Ends one sequence because of a stop string."""

    request_id: str
    index: int


class Abort(_Frame):
    """Ends every sequence of a request."""

    request_id: str


class ReadStats(_Frame):
    """Asks for Stats of now, with the same number."""

    number: int


class Error(msgspec.Struct, array_like=True):
    """A JaxinferError: its kind and what makes it again."""

    kind: Literal["parameter", "queue_full", "engine_dead", "worker_lost", "other"]
    arguments: tuple[str | int, ...]


class Hello(_Frame):
    """The first event of a stream."""

    info: ModelInfo
    stats: EngineStats


class Answer(_Frame):
    """To each Submit, at once. refused: None where the request is queued."""

    request_id: str
    refused: Error | None = None


class Failure(_Frame):
    """A request that was queued failed before its first step."""

    request_id: str
    error: Error


class Step(_Frame):
    """Outputs of steps for the sequences of this API process. Raises ValueError if the lengths of arrays do not
    match."""

    outputs: list[StepOutput]

    def __post_init__(self) -> None:
        for sequence_ids, counts, tokens, _ in self.outputs:
            if len(sequence_ids) != len(counts) or counts.sum() != len(tokens):
                sizes = f"{len(sequence_ids)} sequence ids, {len(counts)} counts and {len(tokens)} tokens"
                raise ValueError(f"{sizes} do not fit each other")


class Stats(_Frame):
    """A newer reading. number: of the ReadStats that asked for it; None: nobody did."""

    stats: EngineStats
    number: int | None = None


Command = Submit | Stop | Abort | ReadStats
Event = Hello | Answer | Failure | Step | Stats


def pack_request(request: GenerateRequest) -> Submit:
    """The frame of a request."""
    ids = np.asarray(request.prompt_token_ids, np.int32)
    prediction = np.asarray(request.prediction, np.int32)
    waits = request.max_wait, request.max_expected_wait
    fields = ids, request.sampling, request.priority, request.cache_salt, request.tenant, prediction, *waits
    return Submit(request.request_id, msgspec.Raw(encode(fields)))


def unpack_request(frame: Submit) -> GenerateRequest:
    """The request, its prompt and its prediction as arrays. Raises ValueError where a field is wrong."""
    return GenerateRequest(frame.request_id, *_decode_fields(frame.fields))


def pack_error(error: JaxinferError) -> Error:
    """An error by its kind."""
    if isinstance(error, ParameterError):
        return Error("parameter", (error.param, error.message))
    if isinstance(error, QueueFullError):
        return Error("queue_full", (error.waiting, error.retry_after))
    if isinstance(error, WorkerLostError):
        return Error("worker_lost", (str(error),))
    return Error("engine_dead" if isinstance(error, EngineDeadError) else "other", (str(error),))


def unpack_error(error: Error) -> JaxinferError:
    """The error that was packed."""
    return _ERRORS[error.kind](*error.arguments)


_ERRORS: dict[str, Any] = {
    "parameter": ParameterError,
    "queue_full": QueueFullError,
    "engine_dead": EngineDeadError,
    "worker_lost": WorkerLostError,
    "other": JaxinferError,
}
encode = msgspec.msgpack.Encoder(enc_hook=plain).encode
"""The bytes of a command or of a list of events."""

decode_command = msgspec.msgpack.Decoder(Command, dec_hook=array).decode
"""A Command. As with the next: raises ValueError, or RecursionError where much is nested."""

decode_events = msgspec.msgpack.Decoder(list[Event], dec_hook=array).decode
"""A list of Events."""

_decode_fields = msgspec.msgpack.Decoder(
    tuple[np.ndarray, SamplingParams, int, str, tuple[str, ...], np.ndarray, float | None, float | None], dec_hook=array
).decode
