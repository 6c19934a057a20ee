"""POST /tokenize and /detokenize, in vLLM's form."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from jaxinfer.server.body import read_body, read_json
from jaxinfer.server.chat_schema import TokenizeBody
from jaxinfer.server.context import CONTEXT, Context
from jaxinfer.server.conversation import continues, template_kwargs, template_tools
from jaxinfer.server.errors import ApiError
from jaxinfer.server.params import check_ids
from jaxinfer.server.prompts import Conversation, chat_prompt

Made = TypeVar("Made")

_OF_CONVERSATIONS = (
    "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "thinking", "enable_thinking",
    "reasoning_effort",
)  # fmt: skip

_MANY = 4096
"""Tokens above which the event loop must not wait."""


class DetokenizeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Token ids."""

    model: str | None = None
    tokens: list[int]


async def tokenize(request: web.Request) -> web.Response:
    """Token ids of a text (special tokens added by default) or of a conversation (by default as rendered)."""
    context = request.app[CONTEXT]
    body = await read_body(request, TokenizeBody)
    context.check_model(body.model)
    ids = await _token_ids(body, context)
    longest = context.client.info.max_model_len

    def written() -> bytes:
        strings = list(map(context.text.tokenizer.id_to_token, ids)) if body.return_token_strs else None
        return msgspec.json.encode({"count": len(ids), "max_model_len": longest, "tokens": ids, "token_strs": strings})

    return web.Response(body=await off_loop(len(ids), written), content_type="application/json")


async def _token_ids(body: TokenizeBody, context: Context) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "prompt: give either prompt or messages", param="prompt")
    if body.prompt is not None:
        for name in _OF_CONVERSATIONS:
            if getattr(body, name) is not None:
                raise ApiError(400, f"{name}: needs messages", param=name)
        special = body.add_special_tokens is not False
        parse = body.parse_special is not False
        encode = context.text.encode_async
        return (await encode([body.prompt], add_special_tokens=special, params=["prompt"], parse_special=parse))[0]
    if body.parse_special is not None:
        raise ApiError(400, "parse_special: needs prompt; control tokens in messages are text", param="parse_special")
    said = Conversation(
        messages=body.messages or [],
        tools=template_tools(body.tools) if body.tools else None,
        template_kwargs=template_kwargs(body, context.text.chat_template),
        add_generation_prompt=body.add_generation_prompt is not False,
        add_special_tokens=body.add_special_tokens is True,
        continue_final_message=continues(body),
    )
    return (await chat_prompt(said, context.text)).token_ids


async def detokenize(request: web.Request) -> web.Response:
    """The text of token ids, special tokens included."""
    context = request.app[CONTEXT]
    body = await read_json(request, DetokenizeBody)
    context.check_model(body.model)

    def written() -> bytes:
        check_ids(body.tokens, context.client.info, "tokens")
        return msgspec.json.encode({"prompt": context.text.tokenizer.decode(body.tokens, skip_special_tokens=False)})

    return web.Response(body=await off_loop(len(body.tokens), written), content_type="application/json")


async def off_loop(count: int, work: Callable[[], Made]) -> Made:
    """Work on `count` tokens, in a thread where they are many."""
    return await asyncio.to_thread(work) if count > _MANY else work()
