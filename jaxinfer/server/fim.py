"""POST /v1/fim/completions, Mistral's: what stands between a prompt and a suffix, in the form of a chat's answer."""

from aiohttp import web

from jaxinfer.server.body import read_body
from jaxinfer.server.chat_reply import ChatReply
from jaxinfer.server.chat_schema import ChatBody
from jaxinfer.server.context import CONTEXT, reply_id
from jaxinfer.server.generation import Generation
from jaxinfer.server.params import check_fim, fim_params, fit_length, generate_params
from jaxinfer.server.prompts import Prompt
from jaxinfer.server.schema import CompletionBody, GenerateBody
from jaxinfer.server.stream import send_reply
from jaxinfer.text.answer import AnswerFormat


class FimBody(GenerateBody, forbid_unknown_fields=True, kw_only=True):
    """random_seed: Mistral's name of seed."""

    prompt: str
    suffix: str | None = None
    random_seed: int | None = None


async def fim_completions(request: web.Request) -> web.StreamResponse:
    """Fills in the middle; goes on to the end of the context by default."""
    context = request.app[CONTEXT]
    body = await read_body(request, FimBody)
    context.check_model(body.model)
    check_fim(body)
    name = reply_id("fim", request, body)
    reply, generation = await _prepare(name, request, body)
    return await send_reply(request, body, generation, reply)


async def _prepare(name: str, request: web.Request, body: FimBody) -> tuple[ChatReply, Generation]:
    context = request.app[CONTEXT]
    info, text = context.client.info, context.text
    common = {field: getattr(body, field) for field in GenerateBody.__struct_fields__}
    common["seed"] = body.random_seed if body.seed is None else body.seed
    params = generate_params(CompletionBody(prompt=body.prompt, **common), text.defaults, info)
    params = fim_params(params, text.fim.end_ids)
    special = body.add_special_tokens is not False
    ids = await text.fim_prompt(body.prompt, body.suffix or "", add_special_tokens=special)
    asked_by = None if body.max_tokens is None else "max_tokens"
    params = fit_length(ids, params, info, param="prompt", asked_by=asked_by)
    generation = context.generation([ids], [params], body, request)
    answer = ChatBody(messages=[], **common)
    return ChatReply(name, context, answer, Prompt(ids, "prompt"), AnswerFormat(), generation), generation
