"""From a request's body to SamplingParams."""

import dataclasses
import re
from collections.abc import Sequence, Sized
from typing import Any, TypeVar, cast

import numpy as np

from jaxinfer.engine.types import MAX_PRIORITY, GenerateRequest, ModelInfo
from jaxinfer.errors import ParameterError
from jaxinfer.sampling import MAX_LOGIT_BIAS, MAX_N, MAX_STOP_TOKEN_IDS, SamplingParams, parameters
from jaxinfer.serving.bodies.chat_schema import ChatBody
from jaxinfer.serving.bodies.schema import CompletionBody, GenerateBody
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.requests.structured import constraint_of
from jaxinfer.text.defaults import GenerationDefaults

Ids = TypeVar("Ids", bound=list[int] | np.ndarray)

_ENDPOINTS_OWN = ("max_tokens", "logprobs")
_SAME = (
    *(name for name in parameters() if name not in _ENDPOINTS_OWN),
    "stop", "stop_token_ids", "allowed_token_ids", "bad_words",
)  # fmt: skip

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default of /v1/completions; a chat goes on to the end of the context by default."""

FITTING = -1
"""vLLM's value of `truncate_prompt_tokens` for as many tokens as leave room for the answer."""

_SALT_CHARS = 256
_TOKEN_ID = re.compile(r"-?[0-9]{1,20}", re.ASCII)


def completion_params(body: CompletionBody, defaults: GenerationDefaults, info: ModelInfo) -> SamplingParams:
    """Return the engine's sampling parameters: `best_of` choices for `n`, and one token if `echo` wants none.

    Raises RequestError, naming the field.
    """
    n, best_of = 1 if body.n is None else body.n, body.best_of
    own = {"max_tokens": body.max_tokens, "logprobs": body.logprobs, "default_max_tokens": COMPLETION_MAX_TOKENS}
    names = {}
    if best_of is not None and best_of != n:
        _check_best_of(best_of, n, body)
        # The choices are ranked by their log-probabilities.
        own |= {"n": best_of, "logprobs": body.logprobs or 0}
        names["n"] = "best_of"
    if body.echo:
        own |= _echo_params(body)
    return _params(body, defaults, info, own, names)


def _check_best_of(best_of: int, n: int, body: CompletionBody) -> None:
    if n < 1:
        raise RequestError(f"n: {n} is out of range; 1 to {MAX_N} is allowed", param="n")
    if best_of > MAX_N:
        raise RequestError(f"best_of: {best_of} is out of range; 1 to {MAX_N} is allowed", param="best_of")
    if best_of < n:
        raise RequestError(f"best_of: {best_of} is less than n, {n}", param="best_of")
    if body.stream:
        raise RequestError(
            "best_of: is not available in a stream, since the best are known only at the end", param="best_of"
        )


def _echo_params(body: CompletionBody) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if body.max_tokens == 0:
        own["max_tokens"] = 1  # the engine makes one, which is not shown
    if body.logprobs is not None:
        if body.prompt_logprobs not in (None, body.logprobs):
            message = f"prompt_logprobs: {body.prompt_logprobs} is not logprobs, {body.logprobs}, which echo shows"
            raise RequestError(message, param="prompt_logprobs")
        own["prompt_logprobs"] = body.logprobs
    return own


def fim_params(params: SamplingParams, end_ids: Sequence[int]) -> SamplingParams:
    """Parameters for filling in the middle, which the family's own tokens end, too."""
    room = MAX_STOP_TOKEN_IDS // 2 - len(end_ids)
    if len(params.stop_token_ids) > room:
        message = (
            f"stop_token_ids: has {len(params.stop_token_ids)} ids; at most {room} are allowed beside the model's own"
        )
        raise RequestError(message, param="stop_token_ids")
    return dataclasses.replace(params, stop_token_ids=[*params.stop_token_ids, *end_ids])


def check_fim(body: GenerateBody) -> None:
    """Raises RequestError for what does not go with filling in the middle, whose prompt cannot be cut."""
    if body.truncate_prompt_tokens is not None:
        message = "truncate_prompt_tokens: is not supported for filling in the middle"
        raise RequestError(message, param="truncate_prompt_tokens")


def generate_params(body: CompletionBody, defaults: GenerationDefaults, info: ModelInfo) -> SamplingParams:
    """A request that comes by gRPC: a completion that goes on to the end of the context by default.

    Raises RequestError, naming the field.
    """
    return _params(body, defaults, info, {"max_tokens": body.max_tokens, "logprobs": body.logprobs}, {})


def chat_params(body: ChatBody, defaults: GenerationDefaults, info: ModelInfo) -> SamplingParams:
    """Raises RequestError, naming the field."""
    if body.echo and not body.continue_final_message:
        raise RequestError("echo: needs continue_final_message, whose beginning it repeats", param="echo")
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    both = (body.max_tokens, body.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        message = "max_tokens is the old name of max_completion_tokens; give one of them"
        raise RequestError(message, param="max_completion_tokens")
    names = {"logprobs": "top_logprobs"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    max_tokens = body.max_tokens if body.max_tokens is not None else body.max_completion_tokens
    return _params(body, defaults, info, {"max_tokens": max_tokens, "logprobs": logprobs}, names)


def _params(
    body: GenerateBody, defaults: GenerationDefaults, info: ModelInfo, own: dict[str, Any], names: dict[str, str]
) -> SamplingParams:
    _check_common(body, info)
    given: dict[str, Any] = {name: getattr(body, name) for name in _SAME} | own
    try:
        bias, constraint = _logit_bias(body.logit_bias), constraint_of(body)
        params = defaults.params(**given, logit_bias=bias, structured_outputs=constraint)
        params.check_vocabulary(info.vocab_size)
    except ParameterError as error:
        param = names.get(error.param, error.param)
        raise RequestError(f"{param}: {error.message}", param=param) from None
    return params


def _logit_bias(biases: dict[str, Any] | None) -> dict[int, float] | None:
    """Token ids, which JSON writes as text, to biases; SamplingParams checks the rest. Raises ParameterError."""
    if biases is None:
        return None
    if len(biases) > MAX_LOGIT_BIAS:
        raise ParameterError("logit_bias", f"has {len(biases)} entries; at most {MAX_LOGIT_BIAS} are allowed")
    wrong = [key for key in biases if not _TOKEN_ID.fullmatch(key)]
    if wrong:
        raise ParameterError("logit_bias", f"keys must be token ids, not {', '.join(map(repr, wrong))}")
    by_id = {int(key): bias for key, bias in biases.items()}
    if len(by_id) < len(biases):
        raise ParameterError("logit_bias", "has a token id twice")
    return by_id


def _check_common(body: GenerateBody, info: ModelInfo) -> None:
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream to be true", param="stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs does not come in a stream", param="prompt_logprobs")
    if body.priority is not None and abs(body.priority) > MAX_PRIORITY:
        raise RequestError(f"priority: at most {MAX_PRIORITY} either way is allowed", param="priority")
    if body.cache_salt is not None and not 1 <= len(body.cache_salt) <= _SALT_CHARS:
        raise RequestError(f"cache_salt: must have 1 to {_SALT_CHARS} characters", param="cache_salt")
    keep, longest = body.truncate_prompt_tokens, info.max_model_len - 1
    if keep not in (None, FITTING) and not 1 <= keep <= longest:
        message = f"truncate_prompt_tokens: {keep} is out of range; 1 to {longest}, or -1, is allowed"
        raise RequestError(message, param="truncate_prompt_tokens")


def truncated(ids: Ids, body: GenerateBody, params: SamplingParams, info: ModelInfo) -> Ids:
    """The token ids that `truncate_prompt_tokens` and `truncation_side` keep. params: those of the request."""
    keep = body.truncate_prompt_tokens
    if keep == FITTING:
        keep = max(1, info.max_model_len - (params.max_tokens or 1))
    if keep is None or len(ids) <= keep:
        return ids
    return cast(Ids, ids[:keep] if body.truncation_side == "right" else ids[-keep:])


def most_tokens(body: GenerateBody, info: ModelInfo) -> int | None:
    """Return how many tokens a body's prompt may have before it is cut; None: any number."""
    return info.max_model_len - 1 if body.truncate_prompt_tokens is None else None


def check_length(prompt: Sized, info: ModelInfo, param: str) -> None:
    """Raises RequestError where a prompt, which errors call `param`, leaves no room for an answer."""
    if len(prompt) >= info.max_model_len:
        # NOTE: agents shorten their history where they find one of these phrases, which litellm and langchain look for.
        message = (
            f"{param}: the prompt is too long: it has {len(prompt)} tokens, and this model's maximum context length is "
            f"{info.max_model_len} tokens, one of them for an answer"
        )
        raise RequestError(message, param=param, code="context_length_exceeded")


def check_ids(ids: Sequence[int], info: ModelInfo, param: str) -> None:
    """Raises RequestError where a token id, in what errors call `param`, is not in the vocabulary."""
    if ids and (min(ids) < 0 or max(ids) >= info.vocab_size):
        wrong = next(token for token in ids if not 0 <= token < info.vocab_size)
        message = f"{param}: token id {wrong} is not in the vocabulary, 0 to {info.vocab_size - 1}"
        raise RequestError(message, param=param)


def fit_length(
    prompt: Sized, params: SamplingParams, info: ModelInfo, *, param: str, asked_by: str | None
) -> SamplingParams:
    """The parameters with a default `max_tokens` cut to what the context leaves.

    param: what errors call the prompt. asked_by: the field that asked for `max_tokens`; None: it is a default.
    Raises RequestError where prompt and asked output do not fit.
    """
    room = info.max_model_len - len(prompt)
    if not len(prompt):
        raise RequestError(f"{param}: is empty; at least one token is needed", param=param)
    check_length(prompt, info, param)
    if params.max_tokens is None or params.max_tokens <= room:
        return params
    if asked_by is None:
        return dataclasses.replace(params, max_tokens=room)
    message = (
        f"{asked_by}: this model's maximum context length is {info.max_model_len} tokens; {params.max_tokens} and the "
        f"prompt's {len(prompt)} tokens are more"
    )
    raise RequestError(message, param=asked_by, code="context_length_exceeded")


def engine_request(
    prompt: list[int] | np.ndarray, params: SamplingParams, info: ModelInfo, body: GenerateBody, param: str
) -> GenerateRequest:
    """The engine request of a body's prompt, cut as the body asks, without an id and an owner.

    param: what errors call the prompt. Raises RequestError where prompt and output do not fit.
    """
    given = (name for name in ("max_completion_tokens", "max_tokens") if getattr(body, name, None) is not None)
    kept = truncated(prompt, body, params, info)
    fitted = fit_length(kept, params, info, param=param, asked_by=next(given, None))
    return GenerateRequest("", np.asarray(kept, np.int32), fitted)
