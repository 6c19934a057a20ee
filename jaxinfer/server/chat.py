"""POST /v1/chat/completions."""

import time

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from jaxinfer.server.body import read_body
from jaxinfer.server.context import CONTEXT, Context, reply_id
from jaxinfer.server.generation import Generation, Step
from jaxinfer.server.logprobs import chat_logprobs, prompt_logprobs
from jaxinfer.server.params import chat_params, fit_length
from jaxinfer.server.prompts import chat_prompt
from jaxinfer.server.responses import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChunkChoice,
    Delta,
    Usage,
)
from jaxinfer.server.schema import ChatBody
from jaxinfer.server.stream import stream_reply, whole_reply
from jaxinfer.text import ChoiceDelta


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answers a conversation."""
    context = request.app[CONTEXT]
    body = await read_body(request, ChatBody)
    context.check_model(body.model)
    name = reply_id("chatcmpl")
    generation = await _prepare(name, context, body)
    reply = _Reply(name, context, body.n or 1)
    async with generation:
        if body.stream:
            return await stream_reply(request, body.stream_options, generation, reply)
        return await whole_reply(generation, reply, large=body.prompt_logprobs is not None)


async def _prepare(name: str, context: Context, body: ChatBody) -> Generation:
    info = context.client.info
    params = chat_params(body, context.text.defaults, info)
    prompt = await chat_prompt(body, context.text)
    said = {"max_completion_tokens": body.max_completion_tokens, "max_tokens": body.max_tokens}
    asked_by = next((field for field, value in said.items() if value is not None), None)
    params = fit_length(prompt, params, info, param="messages", asked_by=asked_by)
    return context.generation(name, [prompt], [params], body)


class _Reply:
    """The choices of one reply, as chunks or whole."""

    def __init__(self, name: str, context: Context, n: int):
        self._name = name
        self._created = int(time.time())
        self._model = context.model_name
        self._tokenizer = context.text.tokenizer
        self._n = n

    def first(self) -> list[ChunkChoice]:
        """Who speaks, before the first token."""
        return [ChunkChoice(index, Delta(role="assistant", content="")) for index in range(self._n)]

    def choices(self, step: Step) -> list[ChunkChoice]:
        """What a step adds, without the choices to which it adds nothing that shows."""
        return [self._choice(delta) for delta in step.deltas if delta.text or delta.logprobs or delta.finish_reason]

    def chunk(self, choices: list[ChunkChoice], usage: Usage | UnsetType | None) -> msgspec.Struct:
        """An event of a stream."""
        return ChatChunk(self._name, self._created, self._model, choices, usage)

    def whole(self, parts: list[ChunkChoice], generation: Generation) -> bytes:
        """The reply from all that the steps added, as JSON."""
        choices = [_join([part for part in parts if part.index == index]) for index in range(self._n)]
        entries = generation.prompt_logprobs(0)
        prompt = UNSET if entries is None else prompt_logprobs(entries, self._tokenizer)
        usage = generation.usage()
        return msgspec.json.encode(
            ChatCompletion(self._name, self._created, self._model, choices, usage, prompt_logprobs=prompt)
        )

    def _choice(self, delta: ChoiceDelta) -> ChunkChoice:
        logprobs = None if delta.logprobs is None else chat_logprobs(delta.logprobs, self._tokenizer)
        content = delta.text or UNSET
        stop_reason = UNSET if delta.finish_reason is None else delta.stop_reason
        return ChunkChoice(delta.index, Delta(content=content), logprobs, delta.finish_reason, stop_reason)


def _join(parts: list[ChunkChoice]) -> ChatChoice:
    last = parts[-1]
    entries = [entry for part in parts if part.logprobs is not None for entry in part.logprobs.content]
    return ChatChoice(
        index=last.index,
        message=ChatMessage("".join(part.delta.content or "" for part in parts)),
        logprobs=ChatLogprobs(entries) if any(part.logprobs is not None for part in parts) else None,
        finish_reason=last.finish_reason,
        stop_reason=None if last.stop_reason is UNSET else last.stop_reason,
    )
