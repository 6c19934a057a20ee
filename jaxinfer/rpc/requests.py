"""From messages to engine requests, by the rules of HTTP's completions."""

from collections.abc import Callable, Sequence
from typing import Any

from jaxinfer.engine.types import GenerateRequest, ModelInfo
from jaxinfer.errors import quoted
from jaxinfer.rpc import jaxinfer_pb2 as pb
from jaxinfer.rpc.access import ACCEPTED_KEY
from jaxinfer.rpc.large_messages import forget_message
from jaxinfer.sampling import (
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
    parameters,
)
from jaxinfer.serving.bodies.schema import CompletionBody
from jaxinfer.serving.bodies.structure import LARGE_BYTES
from jaxinfer.serving.context import Caller, Context
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.generation import Generation
from jaxinfer.serving.requests.completions import completion_requests
from jaxinfer.serving.requests.params import check_length, engine_request, generate_params, most_tokens
from jaxinfer.text.defaults import GenerationDefaults
from jaxinfer.text.tokenizer.bad_words import with_bad_token_ids

_FIELDS = pb.GenerateRequest.DESCRIPTOR.fields_by_name
_OPTIONAL = (
    "model", *(name for name in parameters() if name in _FIELDS), "add_special_tokens", "truncate_prompt_tokens",
    "priority", "cache_salt",
)  # fmt: skip
_NUMBERS = {name: own for name, own in parameters().items() if own.kind is not bool and own.fits_double}


async def prepare(
    context: Context, body: CompletionBody, defaults: GenerationDefaults, time_remaining: Callable[[], float | None]
) -> Generation:
    """Checks a request of one prompt, and tokenises it. Raises RequestError or ParameterError, naming the field.

    time_remaining: tells the seconds until the call's deadline; None: it has none. The caller has dropped the call's
    message, and drops the body.
    """
    context.side.check_model(body.model)
    params = with_bad_token_ids(generate_params(body, defaults, context.client.info), context.text.tokenizer)
    request = await _request(context, body, params)
    generation = context.generation([request], body, _caller(context, time_remaining()))
    forget_message()
    return generation


def _caller(context: Context, timeout: float | None) -> Caller:
    # Unlike in HTTP a field without effect is never refused: there is no policy for it in gRPC.
    return Caller(ACCEPTED_KEY.get(), None, {}, lambda field, reason: context.unknown_fields.report([field]), timeout)


async def _request(context: Context, body: CompletionBody, params: SamplingParams) -> GenerateRequest:
    info = context.client.info
    if not isinstance(body.prompt, str) or len(body.prompt) <= LARGE_BYTES:
        ((request, _),) = await completion_requests(body, params, context.text, info, 1)
        return request
    context.text.tokenizer.check_text(body.prompt, "prompt")
    special = body.add_special_tokens is not False
    encode, most, key = context.workers.encode, most_tokens(body, info), ACCEPTED_KEY.get()
    (ids,) = await encode([body.prompt], add_special_tokens=special, params=["prompt"], most=most, key=key)
    return engine_request(ids, params, info, body, "prompt")


def completion_body(message: pb.GenerateRequest, info: ModelInfo) -> CompletionBody:
    """Convert the message to the HTTP body of an equal request. Raises RequestError."""
    said: dict[str, Any] = {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    said |= _numbers(message, said)
    said |= lists_of(message) | _token_rules(message, info)
    if message.HasField("structured_outputs"):
        said["structured_outputs"] = _structured_outputs(message.structured_outputs)
    kind = message.WhichOneof("prompt")
    if kind is None:
        raise RequestError("prompt: is missing; give text or token_ids", param="prompt")
    cut = message.HasField("truncate_prompt_tokens")
    prompt: Any = message.text if kind == "text" else prompt_ids(message.token_ids.ids, info, cut=cut)
    return CompletionBody(prompt=prompt, **said)


def _structured_outputs(said: pb.StructuredOutputs) -> dict[str, Any]:
    """The object of this name in HTTP."""
    return {field.name: list(value) if field.name == "choice" else value for field, value in said.ListFields()}


def _token_rules(message: pb.GenerateRequest, info: ModelInfo) -> dict[str, list[Any]]:
    """Raises RequestError, before anything is copied."""
    limits = {"allowed_token_ids": info.vocab_size, "bad_words": MAX_BAD_WORDS}
    for name, most in limits.items():
        _check_count(name, len(getattr(message, name)), most)
    return {name: list(getattr(message, name)) for name in limits}


def _numbers(message: pb.GenerateRequest, said: dict[str, Any]) -> dict[str, Any]:
    """Parameters that come by name. said: those that came in fields of their own. Raises RequestError."""
    for name in message.sampling:
        if name not in _NUMBERS:
            text = f"sampling: {quoted(name)} is not one of {', '.join(_NUMBERS)}"
            raise RequestError(text, param="sampling")
        if name in said:
            raise RequestError(f"{name}: is given twice, in `sampling` and in its own field", param=name)
    return {name: _NUMBERS[name].from_double(value) for name, value in message.sampling.items()}


def prompt_ids(ids: Sequence[int], info: ModelInfo, *, cut: bool) -> list[int]:
    """Token ids of a message; cut: only the last of them will be kept. Raises RequestError where they are too many."""
    if not ids:
        raise RequestError("prompt: is empty; at least one token is needed", param="prompt")
    if not cut:
        check_length(ids, info, "prompt")
    # NOTE: lengths come first; a walk over millions of ids would hold up every other client.
    return list(ids[-info.max_model_len :])


def lists_of(params: Any) -> dict[str, Any]:
    """Stop strings, stop ids and biases of a request's parameters. Raises RequestError, before they are copied."""
    limits = (("stop", MAX_STOP_STRINGS), ("stop_token_ids", MAX_STOP_TOKEN_IDS), ("logit_bias", MAX_LOGIT_BIAS))
    for name, most in limits:
        _check_count(name, len(getattr(params, name)), most)
    biases = {str(token): bias for token, bias in params.logit_bias.items()}
    return {"stop": list(params.stop), "stop_token_ids": list(params.stop_token_ids), "logit_bias": biases}


def _check_count(name: str, count: int, most: int) -> None:
    if count > most:
        raise RequestError(f"{name}: has {count} entries; at most {most} are allowed", param=name)
