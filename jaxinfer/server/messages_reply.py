"""MessagesReply: what /v1/messages makes of a generation."""

from collections.abc import Sequence

import msgspec

from jaxinfer.server.chat_answer import ChatAnswer
from jaxinfer.server.errors import status_of
from jaxinfer.server.messages_blocks import MessageBlocks, joined_blocks
from jaxinfer.server.messages_errors import messages_error_body
from jaxinfer.server.messages_schema import (
    BlockEvent,
    MessageDelta,
    MessageReply,
    MessageStart,
    MessageStop,
    MessagesUsage,
    Stop,
    ThinkingTokens,
)
from jaxinfer.server.reply import Event, Reply
from jaxinfer.serving.bodies.messages_schema import MessagesBody
from jaxinfer.serving.context import Context
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.generation import Generation, PromptStep
from jaxinfer.serving.requests.conversation import tool_schemas
from jaxinfer.serving.requests.messages import as_chat
from jaxinfer.text import ChoiceDelta

PREFIX = "msg_"
"""Prefix of a reply's id."""


class MessagesReply(Reply):
    """The answer to a conversation. texts: of the prompt, where it was rendered."""

    def __init__(
        self, name: str, context: Context, body: MessagesBody, texts: Sequence[str | None], generation: Generation
    ):
        chat = as_chat(body)
        form = context.answer_form.offering(tool_schemas(chat))
        self._name, self._model = name, context.model_name
        self._generation = generation
        self._answer = ChatAnswer(context, chat, texts[0], form)
        self._blocks = MessageBlocks()
        self._taken: list[BlockEvent] = []
        self._stop: Stop | None = None
        self._begun = False
        most = generation.requests[0].sampling.max_tokens
        self.headers = {} if most in (None, body.max_tokens) else {"X-Max-Tokens": str(most)}

    def begin(self) -> list[Event]:
        return []  # the first event tells how much of the prompt was cached, which the first step brings

    def events(self, step: PromptStep) -> list[Event]:
        first = [] if self._begun else [_named(MessageStart(self._message()))]
        self._begun = True
        return [*first, *map(_named, self._push(step))]

    def end(self) -> list[Event]:
        assert self._stop is not None
        last = (*self._blocks.close(), MessageDelta(self._stop, self._usage()), MessageStop())
        return list(map(_named, last))

    def fail(self, error: RequestError) -> list[Event]:
        body = messages_error_body(error, status_of(error), self._name.removeprefix(PREFIX))
        return [Event(body, "error")]

    def take(self, step: PromptStep) -> None:
        self._taken += self._push(step)

    def whole(self) -> bytes:
        assert self._stop is not None
        message = self._message()
        message.content = joined_blocks(self._taken)
        message.stop_reason, message.stop_sequence = self._stop.stop_reason, self._stop.stop_sequence
        return msgspec.json.encode(message)

    def _push(self, step: PromptStep) -> list[BlockEvent]:
        (delta,) = step.deltas
        events = self._blocks.push(self._answer.push(delta))
        if delta.finish_reason is not None:
            self._stop = self._ended(delta)
        return events

    def _ended(self, delta: ChoiceDelta) -> Stop:
        if delta.finish_reason == "length":
            return Stop("max_tokens")
        if isinstance(delta.stop_reason, str):
            return Stop("stop_sequence", delta.stop_reason)
        return Stop("tool_use" if self._blocks.has_call else "end_turn")

    def _message(self) -> MessageReply:
        return MessageReply(self._name, self._model, [], self._usage())

    def _usage(self) -> MessagesUsage:
        usage = self._generation.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        told = MessagesUsage(usage.prompt_tokens - cached, usage.completion_tokens, cached)
        if self._answer.reasoning is not None:
            told.output_tokens_details = ThinkingTokens(self._answer.reasoning.count)
        return told


def _named(event: msgspec.Struct) -> Event:
    return Event(event, str(event.__struct_config__.tag))
