"""Requests, steps and errors as messages of engine.proto, and back.

What an array holds is checked by its size. Messages that do not fit their description raise ValueError.
"""

import json
from collections.abc import Iterable, Mapping
from math import isnan
from typing import Any

import numpy as np

from jaxinfer.engine.types import (
    EngineStats,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    RequestTimes,
    StepOutput,
    TokenDelta,
)
from jaxinfer.errors import EngineDeadError, JaxinferError, ParameterError, QueueFullError
from jaxinfer.rpc import engine_pb2 as pb
from jaxinfer.rpc.wire_logprobs import pack_logprobs, unpack_logprobs
from jaxinfer.sampling import SamplingParams, parameters

_SCALARS = {name: own for name, own in parameters().items() if own.engine and own.fits_double}
_NONE = float("nan")


def pack_request(request: GenerateRequest) -> pb.Submit:
    """A request, without what only the API process needs of its sampling parameters."""
    return pb.Submit(
        request_id=request.request_id,
        prompt_token_ids=np.array(request.prompt_token_ids, "<i4").tobytes(),
        sampling=pack_sampling(request.sampling),
        priority=request.priority,
        cache_salt=request.cache_salt,
        tenant=request.tenant,
    )


def unpack_request(message: pb.Submit) -> GenerateRequest:
    """The request. Raises ParameterError where a parameter is out of range."""
    prompt = np.frombuffer(message.prompt_token_ids, "<i4").tolist()
    sampling = unpack_sampling(message.sampling)
    salt, tenant = message.cache_salt, tuple(message.tenant)
    return GenerateRequest(message.request_id, prompt, sampling, message.priority, salt, tenant)


def pack_sampling(params: SamplingParams) -> pb.Sampling:
    """What the engine needs of sampling parameters."""
    values = [getattr(params, name) for name in _SCALARS]
    return pb.Sampling(
        scalars=[_NONE if value is None else value for value in values],
        seed=params.seed,
        logit_bias=params.logit_bias,
        stop_token_ids=params.stop_token_ids,
    )


def unpack_sampling(message: pb.Sampling) -> SamplingParams:
    """Sampling parameters without stop strings. Raises ParameterError, and ValueError where there are too few."""
    pairs = zip(_SCALARS.items(), message.scalars, strict=True)
    values: dict[str, Any] = {name: None if isnan(value) else own.from_double(value) for (name, own), value in pairs}
    values["seed"] = message.seed if message.HasField("seed") else None
    bias, stops = dict(message.logit_bias), tuple(message.stop_token_ids)
    return SamplingParams(**values, logit_bias=bias, stop_token_ids=stops)


def pack_step(outputs: Iterable[StepOutput]) -> pb.Step:
    """What steps gave."""
    return pb.Step(outputs=[_pack_output(output) for output in outputs])


def unpack_step(message: pb.Step) -> list[StepOutput]:
    """What steps gave."""
    return [_unpack_output(output) for output in message.outputs]


def pack_error(error: JaxinferError) -> pb.Error:
    """An error by its kind."""
    if isinstance(error, ParameterError):
        return pb.Error(kind=pb.Error.PARAMETER, param=error.param, message=error.message)
    if isinstance(error, QueueFullError):
        return pb.Error(kind=pb.Error.QUEUE_FULL, waiting=error.waiting, retry_after=error.retry_after)
    kind = pb.Error.ENGINE_DEAD if isinstance(error, EngineDeadError) else pb.Error.OTHER
    return pb.Error(kind=kind, message=str(error))


def unpack_error(message: pb.Error) -> JaxinferError:
    """The error that was packed."""
    if message.kind == pb.Error.PARAMETER:
        return ParameterError(message.param, message.message)
    if message.kind == pb.Error.QUEUE_FULL:
        return QueueFullError(message.waiting, message.retry_after)
    return (EngineDeadError if message.kind == pb.Error.ENGINE_DEAD else JaxinferError)(message.message)


def pack_info(info: ModelInfo) -> str:
    """As JSON."""
    return json.dumps(info._asdict())


def unpack_info(text: str) -> ModelInfo:
    """What `pack_info` has made."""
    return ModelInfo(**json.loads(text))


def pack_stats(stats: EngineStats) -> dict[str, float]:
    """By name; what is a tuple by name and place, as in `step_tokens.0`."""
    values: dict[str, float] = {}
    for name, value in stats._asdict().items():
        if isinstance(value, tuple):
            values |= {f"{name}.{i}": one for i, one in enumerate(value)}
        else:
            values[name] = value
    return values


def unpack_stats(values: Mapping[str, float]) -> EngineStats:
    """Counts are integers again; a name that this version does not know is an error."""
    plain: dict[str, Any] = {}
    places: dict[str, dict[int, float]] = {}
    for name, value in values.items():
        number = int(value) if value.is_integer() else value
        field, _, place = name.partition(".")
        if place:
            places.setdefault(field, {})[int(place)] = number
        else:
            plain[field] = number
    plain |= {name: tuple(found[i] for i in sorted(found)) for name, found in places.items()}
    return EngineStats(**plain)


def _pack_output(output: StepOutput) -> pb.Output:
    return pb.Output(
        handles=output.handles.astype("<i8").tobytes(),
        counts=output.counts.astype("<i4").tobytes(),
        tokens=output.tokens.astype("<i4").tobytes(),
        deltas=[_pack_delta(delta) for delta in output.deltas],
    )


def _unpack_output(message: pb.Output) -> StepOutput:
    handles, counts = np.frombuffer(message.handles, "<i8"), np.frombuffer(message.counts, "<i4")
    tokens = np.frombuffer(message.tokens, "<i4")
    if len(handles) != len(counts) or counts.sum() != len(tokens):
        raise ValueError(f"{len(handles)} handles, {len(counts)} counts and {len(tokens)} tokens do not fit")
    return StepOutput(handles, counts, tokens, [_unpack_delta(delta) for delta in message.deltas])


def _pack_delta(delta: TokenDelta) -> pb.Delta:
    prompt = None if delta.prompt_logprobs is None else [e for e in delta.prompt_logprobs if e is not None]
    return pb.Delta(
        request_id=delta.request_id,
        index=delta.index,
        token_ids=delta.token_ids,
        logprobs=None if delta.logprobs is None else pack_logprobs(delta.logprobs),
        finish_reason=delta.finish_reason or "",
        stop_token_id=delta.stop_token_id,
        cached_tokens=delta.cached_tokens,
        prompt_logprobs=None if prompt is None else pack_logprobs(prompt),
        error=delta.error or "",
        times=None if delta.times is None else pb.Times(queue=delta.times.queue, prefill=delta.times.prefill),
        handle=delta.handle,
        preemptions=delta.preemptions,
    )


def _unpack_delta(message: pb.Delta) -> TokenDelta:
    prompt = None
    if message.HasField("prompt_logprobs"):
        prompt = [None, *unpack_logprobs(message.prompt_logprobs)]
    return TokenDelta(
        message.request_id,
        message.index,
        list(message.token_ids),
        unpack_logprobs(message.logprobs) if message.HasField("logprobs") else None,
        FinishReason(message.finish_reason) if message.finish_reason else None,
        message.stop_token_id if message.HasField("stop_token_id") else None,
        message.cached_tokens,
        prompt,
        message.error or None,
        RequestTimes(message.times.queue, message.times.prefill) if message.HasField("times") else None,
        message.handle,
        message.preemptions,
    )
