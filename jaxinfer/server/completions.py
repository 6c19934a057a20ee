"""POST /v1/completions."""

import msgspec
from aiohttp import web

from jaxinfer.server.body import Received, receive
from jaxinfer.server.completion_reply import CompletionReply
from jaxinfer.server.context import CONTEXT, reply_id
from jaxinfer.server.endpoint import Endpoint, ModelSide, Ready, without_effect_dropped
from jaxinfer.server.params import completion_params, fim_params, fit_length, truncation
from jaxinfer.server.prompts import completion_prompts
from jaxinfer.server.schema import CompletionBody
from jaxinfer.server.stream import send_reply


async def completions(request: web.Request) -> web.StreamResponse:
    """Continues texts, or token ids."""
    return await answer_completion(request, await receive(request, COMPLETIONS))


async def answer_completion(request: web.Request, received: Received[CompletionBody]) -> web.StreamResponse:
    """Answers a body that was received."""
    context, body = request.app[CONTEXT], received.body
    context.side.check(body)
    name = reply_id("cmpl", request, body)
    ready = await _prepare(body, context.side, received.ready)
    generation = context.generation([prompt.token_ids for prompt in ready.prompts], ready.params, body, request)
    reply = CompletionReply(name, context, body, ready.prompts, generation)
    return await send_reply(request, body, generation, reply)


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
