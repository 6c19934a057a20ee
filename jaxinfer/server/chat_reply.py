"""ChatReply: what /v1/chat/completions makes of a generation."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from jaxinfer.server.chat_answer import ChatAnswer
from jaxinfer.server.choices_reply import ChoicesReply, by_index
from jaxinfer.server.reply_schema import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChunkChoice,
    Delta,
    FunctionCall,
    ToolCallReply,
)
from jaxinfer.serving.bodies.chat_schema import ChatBody
from jaxinfer.serving.context import Context
from jaxinfer.serving.generation import Generation, PromptStep
from jaxinfer.serving.requests.conversation import echoed_text
from jaxinfer.serving.usage import CompletionTokensDetails, Usage
from jaxinfer.text import ChoiceDelta
from jaxinfer.text.answer.parser import AnswerFormat
from jaxinfer.text.answer.parts import AnswerPart


class ChatReply(ChoicesReply):
    """The answers to a conversation. prompt: its text, where it was rendered."""

    _chunk_type = ChatChunk

    def __init__(
        self,
        name: str,
        context: Context,
        body: ChatBody,
        prompt: str | None,
        form: AnswerFormat,
        generation: Generation,
    ):
        super().__init__(name, context, body, generation)
        self._body = body
        self._answers = [ChatAnswer(context, body, prompt, form) for _ in range(self._n)]
        self._echoed = echoed_text(body)
        self._prompt_told = not body.return_token_ids

    def first(self) -> list[ChunkChoice]:
        """Who speaks, before the first token."""
        return [ChunkChoice(index, Delta(role="assistant", content=self._echoed)) for index in range(self._n)]

    def choices(self, step: PromptStep) -> list[ChunkChoice]:
        found = [choice for delta in step.deltas if (choice := self._choice(delta)) is not None]
        return [part for choice in found for part in _with_end_apart(choice)]

    def chunk(self, choices: list[ChunkChoice], usage: Usage | UnsetType | None) -> Any:
        event = super().chunk(choices, usage)
        if not self._prompt_told:
            self._prompt_told, event.prompt_token_ids = True, self._generation.prompt_token_ids(0)
        return event

    def joined(self, parts: list[ChunkChoice]) -> bytes:
        found = by_index(parts)
        choices = [_join(found[index], self._echoed) for index in range(self._n)]
        reply = ChatCompletion(*self._head, choices, self.usage(), self._fingerprint)
        entries = self._generation.prompt_logprobs(0)
        if entries is not None:
            reply.prompt_logprobs = self._logprobs.prompt(entries)
        if self._body.return_token_ids:
            reply.prompt_token_ids = self._generation.prompt_token_ids(0)
        return msgspec.json.encode(reply)

    def usage(self) -> Usage:
        usage = super().usage()
        counts = [answer.reasoning.count for answer in self._answers if answer.reasoning is not None]
        if counts:
            details = usage.completion_tokens_details or CompletionTokensDetails()
            usage.completion_tokens_details = msgspec.structs.replace(details, reasoning_tokens=sum(counts))
        return usage

    def _choice(self, delta: ChoiceDelta) -> ChunkChoice | None:
        answer = self._answers[delta.index]
        shown = answer.push(delta)
        if not (shown or delta.logprobs or delta.finish_reason or self._body.return_token_ids):
            return None
        logprobs = None if delta.logprobs is None else self._logprobs.chat(delta.logprobs)
        choice = ChunkChoice(delta.index, _delta(shown), logprobs, answer.finish_reason(delta))
        if delta.finish_reason is not None:
            choice.stop_reason = delta.stop_reason
        if self._body.return_token_ids:
            choice.token_ids = list(delta.token_ids)
        return choice


def _with_end_apart(choice: ChunkChoice) -> list[ChunkChoice]:
    """Return the choice, or two if a call and the end come together: openai's client takes a call for done when another
    chunk follows it."""
    if choice.finish_reason is None or not choice.delta.tool_calls:
        return [choice]
    end = ChunkChoice(choice.index, Delta(), None, choice.finish_reason, choice.stop_reason)
    choice.finish_reason, choice.stop_reason = None, UNSET
    return [choice, end]


def _delta(shown: list[AnswerPart | ToolCallReply]) -> Delta:
    calls = [part for part in shown if isinstance(part, ToolCallReply)]
    texts = [part for part in shown if isinstance(part, AnswerPart)]
    content, reasoning = "".join(part.content for part in texts), "".join(part.reasoning for part in texts)
    # A chunk without any of the three has an empty content, which clients read.
    delta = Delta(content=content if content or not shown else UNSET)
    if reasoning:
        delta.reasoning_content = delta.reasoning = reasoning
    if calls:
        delta.tool_calls = calls
    return delta


def _join(parts: list[ChunkChoice], echoed: str) -> ChatChoice:
    last = parts[-1]
    entries = [entry for part in parts if part.logprobs is not None for entry in part.logprobs.content]
    choice = ChatChoice(
        index=last.index,
        message=_message([part.delta for part in parts], echoed),
        logprobs=ChatLogprobs(entries) if any(part.logprobs is not None for part in parts) else None,
        finish_reason=last.finish_reason,
        stop_reason=None if last.stop_reason is UNSET else last.stop_reason,
    )
    if last.token_ids is not UNSET:
        choice.token_ids = [token for part in parts for token in part.token_ids or ()]
    return choice


def _message(deltas: list[Delta], echoed: str) -> ChatMessage:
    message = ChatMessage(echoed + "".join(delta.content or "" for delta in deltas))
    reasoning = "".join(delta.reasoning_content or "" for delta in deltas)
    if reasoning:
        message.reasoning_content = message.reasoning = reasoning
    calls = _joined_calls([call for delta in deltas for call in delta.tool_calls or ()])
    if calls:
        message.tool_calls = calls
        message.content = message.content or None
    return message


def _joined_calls(pieces: list[ToolCallReply]) -> list[ToolCallReply]:
    """Whole calls, without their number, which is said in streams only."""
    found: dict[int | UnsetType, ToolCallReply] = {}
    for piece in pieces:
        if piece.index not in found:
            function = FunctionCall(name=piece.function.name, arguments="")
            found[piece.index] = ToolCallReply(id=piece.id, function=function, type=piece.type)
        found[piece.index].function.arguments += piece.function.arguments
    return list(found.values())
