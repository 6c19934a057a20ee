"""The endpoints that read a body: those that generate, those that count tokens, and tokenisation in vLLM's form."""

from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from jaxinfer.server.body import receive, receive_answer
from jaxinfer.server.chat_reply import ChatReply
from jaxinfer.server.completion_reply import CompletionReply
from jaxinfer.server.context import CONTEXT, caller_of, reply_id
from jaxinfer.server.messages_reply import PREFIX, MessagesReply
from jaxinfer.server.reply import Reply
from jaxinfer.server.stream import send_reply
from jaxinfer.serving.bodies.chat_schema import ChatBody
from jaxinfer.serving.context import Context
from jaxinfer.serving.generation import Generation
from jaxinfer.serving.requests.chat import CHAT
from jaxinfer.serving.requests.completions import COMPLETIONS
from jaxinfer.serving.requests.conversation import tool_schemas
from jaxinfer.serving.requests.endpoint import Choice, Endpoint
from jaxinfer.serving.requests.endpoints import INVOCATIONS
from jaxinfer.serving.requests.fim import FIM, FimBody, fim_as_chat
from jaxinfer.serving.requests.messages import COUNT_TOKENS, MESSAGES
from jaxinfer.serving.requests.tokens import DETOKENIZE, TOKENIZE
from jaxinfer.text.answer.parser import AnswerFormat


async def completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions: continues texts, or token ids."""
    return await _generate(request, COMPLETIONS)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions: answers a conversation."""
    return await _generate(request, CHAT)


async def fim_completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/fim/completions, Mistral's: what stands between a prompt and a suffix, in the form of a chat's answer.

    Goes on to the end of the context by default.
    """
    return await _generate(request, FIM)


async def messages(request: web.Request) -> web.StreamResponse:
    """POST /v1/messages, Anthropic's: answers a conversation."""
    return await _generate(request, MESSAGES)


async def count_tokens(request: web.Request) -> web.Response:
    """POST /v1/messages/count_tokens, Anthropic's: tokens of a conversation as the template renders it."""
    return await receive_answer(request, COUNT_TOKENS)


async def invocations(request: web.Request) -> web.StreamResponse:
    """POST /invocations, SageMaker's: a chat where the body has `messages`, a completion where it has `prompt`."""
    return await _generate(request, INVOCATIONS)


async def tokenize(request: web.Request) -> web.Response:
    """POST /tokenize: ids of a text (special tokens added by default) or a conversation (by default as rendered)."""
    return await receive_answer(request, TOKENIZE)


async def detokenize(request: web.Request) -> web.Response:
    """POST /detokenize: the text of token ids, special tokens included."""
    return await receive_answer(request, DETOKENIZE)


async def _generate(request: web.Request, endpoint: Endpoint[Any] | Choice) -> web.StreamResponse:
    context = request.app[CONTEXT]
    chosen, body, prepared = await receive(request, endpoint)
    prefix, reply = _REPLIES[chosen.name]
    asked = chosen.as_openai(body)
    name = reply_id(prefix, request, asked)
    prepared = await chosen.prepare(body, context.side) if prepared is None else prepared
    generation = context.generation([made for made, _ in prepared], asked, caller_of(request))
    made = reply(name, context, body, [text for _, text in prepared], generation)
    return await send_reply(request, generation, made, stream=bool(asked.stream))


def _chat_reply(
    name: str, context: Context, body: ChatBody, texts: Sequence[str | None], generation: Generation
) -> ChatReply:
    form = context.answer_form.offering(tool_schemas(body))
    return ChatReply(name, context, body, texts[0], form, generation)


def _fim_reply(
    name: str, context: Context, body: FimBody, texts: Sequence[str | None], generation: Generation
) -> ChatReply:
    return ChatReply(name, context, fim_as_chat(body), texts[0], AnswerFormat(), generation)


_REPLIES: dict[str, tuple[str, Callable[..., Reply]]] = {
    COMPLETIONS.name: ("cmpl-", CompletionReply),
    CHAT.name: ("chatcmpl-", _chat_reply),
    FIM.name: ("fim-", _fim_reply),
    MESSAGES.name: (PREFIX, MessagesReply),
}
"""Prefix of a reply's ids and the reply's factory, by endpoint."""
