"""Completions: texts, or token ids, that the model goes on with."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from jaxinfer.engine.types import ModelInfo
from jaxinfer.sampling import SamplingParams
from jaxinfer.serving.bodies.schema import CompletionBody
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.requests.endpoint import (
    Endpoint,
    ModelSide,
    Prepared,
    as_it_is,
    check_common,
    without_effect_dropped,
)
from jaxinfer.serving.requests.params import (
    check_fim,
    check_ids,
    check_length,
    completion_params,
    engine_request,
    fim_params,
    most_tokens,
    truncated,
)
from jaxinfer.text import TextProcessor
from jaxinfer.text.tokenizer.bad_words import with_bad_token_ids

_MIXED = "prompt: must be a text, a list of texts, a list of token ids, or a list of lists of token ids"

Cut = Callable[[list[int]], list[int]]


async def _prepare(body: CompletionBody, side: ModelSide) -> Prepared:
    params = with_bad_token_ids(completion_params(body, side.text.defaults, side.info), side.text.tokenizer)
    if body.suffix:
        params = fim_params(params, side.text.fim.end_ids)
    return await completion_requests(body, params, side.text, side.info, side.options.max_prompts)


def _slim(body: CompletionBody) -> CompletionBody:
    suffix = body.suffix[:1] if body.suffix else None
    return msgspec.structs.replace(without_effect_dropped(body), prompt="", suffix=suffix)


COMPLETIONS = Endpoint("completions", CompletionBody, check_common, _prepare, _slim, as_it_is)


async def completion_requests(
    body: CompletionBody, params: SamplingParams, text: TextProcessor, info: ModelInfo, max_prompts: int
) -> Prepared:
    """An engine request for every prompt, cut as the body asks. Raises RequestError or ParameterError."""

    def cut(ids: list[int]) -> list[int]:
        # NOTE: before ids are looked at; a walk over millions of them would hold up every other client.
        return truncated(ids, body, params, info)

    prompts = _named_prompts(body.prompt, info, max_prompts, cut)
    ids = await (_fim_ids(prompts, body, text, info) if body.suffix else _prompt_ids(prompts, body, text, info, cut))
    return [
        (engine_request(ids[param], params, info, body, param), prompt if isinstance(prompt, str) else None)
        for param, prompt in prompts.items()
    ]


async def _prompt_ids(
    prompts: Mapping[str, str | list[int]], body: CompletionBody, text: TextProcessor, info: ModelInfo, cut: Cut
) -> Mapping[str, list[int]]:
    texts = {param: prompt for param, prompt in prompts.items() if isinstance(prompt, str)}
    ids = {param: cut(prompt) for param, prompt in prompts.items() if not isinstance(prompt, str)}
    for param, prompt in ids.items():
        check_length(prompt, info, param)
        check_ids(prompt, info, param)
    special, parse = body.add_special_tokens is not False, body.parse_special is not False
    encoded = await text.encode_async(
        list(texts.values()),
        add_special_tokens=special,
        params=list(texts),
        parse_special=parse,
        most=most_tokens(body, info),
    )
    return ids | dict(zip(texts, encoded, strict=True))


async def _fim_ids(
    prompts: Mapping[str, str | list[int]], body: CompletionBody, text: TextProcessor, info: ModelInfo
) -> Mapping[str, list[int]]:
    """Prompts that ask for what stands between each of them and `suffix`."""
    check_fim(body)
    if body.echo:
        raise RequestError("echo: is not supported together with suffix", param="echo")
    special, parse = body.add_special_tokens is not False, body.parse_special is not False
    found = {}
    for param, prompt in prompts.items():
        if not isinstance(prompt, str):
            raise RequestError(f"{param}: must be a text where suffix is given", param=param)
        ids = await text.fim_prompt(prompt, body.suffix or "", add_special_tokens=special, parse_special=parse)
        check_length(ids, info, param)
        found[param] = ids
    return found


def _named_prompts(prompt: str | list[Any], info: ModelInfo, max_prompts: int, cut: Cut) -> dict[str, str | list[int]]:
    """Prompts by what errors call them: `prompt`, or `prompt[i]` where there is a list of them."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if not prompt:
        raise RequestError("prompt: is empty; give a text or token ids", param="prompt")
    if isinstance(prompt[0], int):
        prompt = cut(prompt)
        check_length(prompt, info, "prompt")
        if not all(isinstance(item, int) for item in prompt):
            raise RequestError(_MIXED, param="prompt")
        return {"prompt": prompt}
    if len(prompt) > max_prompts:
        message = f"prompt: has {len(prompt)} prompts; at most {max_prompts} are allowed in one request"
        raise RequestError(message, param="prompt")
    if all(isinstance(item, str) for item in prompt) or all(isinstance(item, list) for item in prompt):
        return {f"prompt[{i}]": item for i, item in enumerate(prompt)}
    raise RequestError(_MIXED, param="prompt")
