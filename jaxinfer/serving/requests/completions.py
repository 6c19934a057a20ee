"""Completions: texts, or token ids, that the model goes on with."""

import msgspec

from jaxinfer.serving.bodies.schema import CompletionBody
from jaxinfer.serving.requests.endpoint import Endpoint, ModelSide, Ready, without_effect_dropped
from jaxinfer.serving.requests.params import completion_params, fim_params, fit_length, truncation
from jaxinfer.serving.requests.prompts import completion_prompts


async def _prepare(body: CompletionBody, side: ModelSide, made: Ready | None) -> Ready:
    side.check(body)
    params = completion_params(body, side.text.defaults, side.info)
    if body.suffix:
        params = fim_params(params, side.text.fim.end_ids)
    if made is None:
        cut = truncation(body, params, side.info)
        prompts = await completion_prompts(body, side.text, side.info, side.options.max_prompts, cut)
    else:
        prompts = made.prompts
    asked_by = None if body.max_tokens is None else "max_tokens"
    fitted = [
        fit_length(prompt.token_ids, params, side.info, param=prompt.param, asked_by=asked_by) for prompt in prompts
    ]
    return Ready(prompts, fitted)


def _slim(body: CompletionBody) -> CompletionBody:
    suffix = body.suffix[:1] if body.suffix else None
    return msgspec.structs.replace(without_effect_dropped(body), prompt="", suffix=suffix)


COMPLETIONS = Endpoint("completions", CompletionBody, _prepare, _slim)
