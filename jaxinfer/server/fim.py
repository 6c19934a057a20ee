"""POST /v1/fim/completions, Mistral's: what stands between a prompt and a suffix, in the form of a chat's answer."""

from typing import Any

import msgspec
from aiohttp import web

from jaxinfer.server.body import receive
from jaxinfer.server.chat_reply import ChatReply
from jaxinfer.server.chat_schema import ChatBody
from jaxinfer.server.context import CONTEXT, reply_id
from jaxinfer.server.endpoint import Endpoint, ModelSide, Ready, without_effect_dropped
from jaxinfer.server.params import check_fim, fim_params, fit_length, generate_params
from jaxinfer.server.prompts import Prompt
from jaxinfer.server.schema import CompletionBody, GenerateBody
from jaxinfer.server.stream import send_reply
from jaxinfer.text.answer import AnswerFormat


class FimBody(GenerateBody, forbid_unknown_fields=True, kw_only=True):
    """random_seed: Mistral's name of seed. parse_special: of CompletionBody."""

    prompt: str
    suffix: str | None = None
    random_seed: int | None = None
    parse_special: bool | None = None


async def fim_completions(request: web.Request) -> web.StreamResponse:
    """Fills in the middle; goes on to the end of the context by default."""
    context = request.app[CONTEXT]
    received = await receive(request, FIM)
    body = received.body
    context.side.check(body)
    check_fim(body)
    name = reply_id("fim", request, body)
    ready = await _prepare(body, context.side, received.ready)
    (prompt,) = ready.prompts
    generation = context.generation([prompt.token_ids], ready.params, body, request)
    answer = ChatBody(messages=[], **_common(body))
    reply = ChatReply(name, context, answer, prompt, AnswerFormat(), generation)
    return await send_reply(request, body, generation, reply)


async def _prepare(body: FimBody, side: ModelSide, made: Ready | None) -> Ready:
    side.check(body)
    check_fim(body)
    text = side.text
    params = generate_params(CompletionBody(prompt=body.prompt, **_common(body)), text.defaults, side.info)
    params = fim_params(params, text.fim.end_ids)
    if made is None:
        special, parse = body.add_special_tokens is not False, body.parse_special is not False
        ids = await text.fim_prompt(body.prompt, body.suffix or "", add_special_tokens=special, parse_special=parse)
        prompt = Prompt(ids, "prompt")
    else:
        (prompt,) = made.prompts
    asked_by = None if body.max_tokens is None else "max_tokens"
    return Ready([prompt], [fit_length(prompt.token_ids, params, side.info, param="prompt", asked_by=asked_by)])


def _common(body: FimBody) -> dict[str, Any]:
    """What it has in common with the other endpoints."""
    common = {field: getattr(body, field) for field in GenerateBody.__struct_fields__}
    common["seed"] = body.random_seed if body.seed is None else body.seed
    return common


def _slim(body: FimBody) -> FimBody:
    return msgspec.structs.replace(without_effect_dropped(body), prompt="", suffix=None)


FIM = Endpoint("fim", FimBody, _prepare, _slim)
