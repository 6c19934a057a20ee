"""From a request's body to SamplingParams."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxinfer.engine.types import ModelInfo
from jaxinfer.errors import ParameterError
from jaxinfer.sampling import SamplingParams
from jaxinfer.server.errors import ApiError
from jaxinfer.server.schema import ChatBody, CompletionBody, GenerateBody
from jaxinfer.text.defaults import GenerationDefaults

_SAME = (
    "n", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "prompt_logprobs", "stop", "stop_token_ids", "include_stop_str_in_output",
    "ignore_eos", "skip_special_tokens",
)  # fmt: skip

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default of /v1/completions; a chat goes on to the end of the context by default."""

_PRIORITY = 2**31 - 1
_SALT_CHARS = 256


def completion_params(body: CompletionBody, defaults: GenerationDefaults, info: ModelInfo) -> SamplingParams:
    """Raises ApiError, naming the field."""
    own = {"max_tokens": body.max_tokens, "logprobs": body.logprobs, "default_max_tokens": COMPLETION_MAX_TOKENS}
    return _params(body, defaults, info, own, {})


def chat_params(body: ChatBody, defaults: GenerationDefaults, info: ModelInfo) -> SamplingParams:
    """Raises ApiError, naming the field."""
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    both = (body.max_tokens, body.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        message = "max_tokens is the old name of max_completion_tokens; give one of them"
        raise ApiError(400, message, param="max_completion_tokens")
    names = {"logprobs": "top_logprobs"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    max_tokens = body.max_tokens if body.max_tokens is not None else body.max_completion_tokens
    return _params(body, defaults, info, {"max_tokens": max_tokens, "logprobs": logprobs}, names)


def _params(
    body: GenerateBody, defaults: GenerationDefaults, info: ModelInfo, own: dict[str, Any], names: dict[str, str]
) -> SamplingParams:
    _check_common(body)
    given = {name: getattr(body, name) for name in _SAME} | own
    try:
        params = defaults.params(**given)
        params.check_vocabulary(info.vocab_size)
    except ParameterError as error:
        param = names.get(error.param, error.param)
        raise ApiError(400, f"{param}: {error.message}", param=param) from None
    return params


def _check_common(body: GenerateBody) -> None:
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream to be true", param="stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise ApiError(400, "prompt_logprobs does not come in a stream", param="prompt_logprobs")
    if body.priority is not None and abs(body.priority) > _PRIORITY:
        raise ApiError(400, f"priority: at most {_PRIORITY} either way is allowed", param="priority")
    if body.cache_salt is not None and not 1 <= len(body.cache_salt) <= _SALT_CHARS:
        raise ApiError(400, f"cache_salt: must have 1 to {_SALT_CHARS} characters", param="cache_salt")


def check_length(prompt: Sequence[Any], info: ModelInfo, param: str) -> None:
    """Raises ApiError where a prompt, which errors call `param`, leaves no room for an answer."""
    if len(prompt) >= info.max_model_len:
        message = f"{param}: has {len(prompt)} tokens; the context has {info.max_model_len}, one of them for an answer"
        raise ApiError(400, message, param=param, code="context_length_exceeded")


def fit_length(
    prompt: list[int], params: SamplingParams, info: ModelInfo, *, param: str, asked_by: str | None
) -> SamplingParams:
    """The parameters with a default `max_tokens` cut to what the context leaves.

    param: what errors call the prompt. asked_by: the field that asked for `max_tokens`; None: it is a default.
    Raises ApiError where prompt and asked output do not fit.
    """
    room = info.max_model_len - len(prompt)
    if not prompt:
        raise ApiError(400, f"{param}: is empty; at least one token is needed", param=param)
    check_length(prompt, info, param)
    if params.max_tokens is None or params.max_tokens <= room:
        return params
    if asked_by is None:
        return dataclasses.replace(params, max_tokens=room)
    message = (
        f"{asked_by}: {params.max_tokens} and the prompt's {len(prompt)} tokens are more than the context, "
        f"{info.max_model_len}"
    )
    raise ApiError(400, message, param=asked_by, code="context_length_exceeded")
