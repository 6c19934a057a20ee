"""POST /v1/completions."""

from aiohttp import web

from jaxinfer.server.body import read_body
from jaxinfer.server.completion_reply import CompletionReply
from jaxinfer.server.context import CONTEXT, reply_id
from jaxinfer.server.generation import Generation
from jaxinfer.server.params import completion_params, fim_params, fit_length, truncation
from jaxinfer.server.prompts import completion_prompts
from jaxinfer.server.schema import CompletionBody
from jaxinfer.server.stream import send_reply


async def completions(request: web.Request) -> web.StreamResponse:
    """Continues texts, or token ids."""
    context = request.app[CONTEXT]
    body = await read_body(request, CompletionBody)
    context.check_model(body.model)
    name = reply_id("cmpl", request, body)
    reply, generation = await _prepare(name, request, body)
    return await send_reply(request, body, generation, reply)


async def _prepare(name: str, request: web.Request, body: CompletionBody) -> tuple[CompletionReply, Generation]:
    context = request.app[CONTEXT]
    info = context.client.info
    params = completion_params(body, context.text.defaults, info)
    if body.suffix:
        params = fim_params(params, context.text.fim.end_ids)
    cut = truncation(body, params, info)
    prompts = await completion_prompts(body, context.text, info, context.options.max_prompts, cut)
    asked_by = None if body.max_tokens is None else "max_tokens"
    fitted = [fit_length(prompt.token_ids, params, info, param=prompt.param, asked_by=asked_by) for prompt in prompts]
    generation = context.generation([prompt.token_ids for prompt in prompts], fitted, body, request)
    return CompletionReply(name, context, body, prompts, generation), generation
