"""Texts to token ids and back, as /tokenize and /detokenize answer."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec

from jaxinfer.serving.bodies.chat_schema import TokenizeBody
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.requests.conversation import render, template_tools
from jaxinfer.serving.requests.endpoint import ModelSide, TextEndpoint
from jaxinfer.serving.requests.params import check_ids

Made = TypeVar("Made")

_OF_CONVERSATIONS = (
    "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "thinking", "enable_thinking",
    "reasoning_effort",
)  # fmt: skip

MAX_IDS = 1_000_000
"""Token ids that are turned to text at once."""

_MANY = 4096
"""Tokens above which the event loop must not wait."""


class DetokenizeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Token ids."""

    model: str | None = None
    tokens: list[int]


async def _tokenized(body: TokenizeBody, side: ModelSide) -> bytes:
    side.check_model(body.model)
    ids = await _token_ids(body, side)
    longest = side.info.max_model_len

    def written() -> bytes:
        strings = list(map(side.text.tokenizer.id_to_token, ids)) if body.return_token_strs else None
        return msgspec.json.encode({"count": len(ids), "max_model_len": longest, "tokens": ids, "token_strs": strings})

    return await off_loop(len(ids), written)


async def _token_ids(body: TokenizeBody, side: ModelSide) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("prompt: give either prompt or messages", param="prompt")
    if body.prompt is not None:
        for name in _OF_CONVERSATIONS:
            if getattr(body, name) is not None:
                raise RequestError(f"{name}: needs messages", param=name)
        special = body.add_special_tokens is not False
        parse = body.parse_special is not False
        encode = side.text.encode_async
        return (await encode([body.prompt], add_special_tokens=special, params=["prompt"], parse_special=parse))[0]
    if body.parse_special is not None:
        raise RequestError("parse_special: needs prompt; control tokens in messages are text", param="parse_special")
    tools = template_tools(body.tools) if body.tools else None
    return (await render(body, tools, side.text)).token_ids


async def _detokenized(body: DetokenizeBody, side: ModelSide) -> bytes:
    side.check_model(body.model)
    check_count(len(body.tokens), "tokens")

    def written() -> bytes:
        check_ids(body.tokens, side.info, "tokens")
        text = side.text.tokenizer.decode(body.tokens, skip_special_tokens=False)
        check_chars(len(text), side.options.max_prompt_chars, "tokens")
        return msgspec.json.encode({"prompt": text})

    return await off_loop(len(body.tokens), written)


def check_count(count: int, param: str) -> None:
    """Raises RequestError for more ids than are turned to text at once. param: what errors call them."""
    if count > MAX_IDS:
        raise RequestError(f"{param}: has {count} ids; at most {MAX_IDS} are allowed", param=param)


def check_chars(count: int, most: int, param: str) -> None:
    """Raises RequestError for a text that no prompt could hold: long tokens would make much of few ids."""
    if count > most:
        raise RequestError(f"{param}: their text has {count} characters; at most {most} are allowed", param=param)


async def off_loop(count: int, work: Callable[[], Made]) -> Made:
    """Work on `count` tokens, in a thread where they are many."""
    return await asyncio.to_thread(work) if count > _MANY else work()


TOKENIZE = TextEndpoint("tokenize", TokenizeBody, _tokenized)
DETOKENIZE = TextEndpoint("detokenize", DetokenizeBody, _detokenized)
