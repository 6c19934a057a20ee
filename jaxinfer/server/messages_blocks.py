"""MessageBlocks: an answer's parts as blocks, one after another."""

from collections.abc import Sequence

import msgspec

from jaxinfer.server.messages_schema import (
    BlockDelta,
    BlockEvent,
    BlockPart,
    BlockStart,
    BlockStop,
    Content,
    InputDelta,
    SignatureDelta,
    TextContent,
    TextDelta,
    ThinkingContent,
    ThinkingDelta,
    ToolUseContent,
)
from jaxinfer.server.reply_schema import ToolCallReply
from jaxinfer.text.answer.json_strings import json_object
from jaxinfer.text.answer.parts import AnswerPart


class MessageBlocks:
    """Makes the events of blocks. At most one block is open, the last. has_call: one of them is a call."""

    def __init__(self) -> None:
        self.has_call = False
        self._count = 0
        self._open: type[Content] | None = None
        self._kind: type[Content] | None = None  # of the last part
        self._begun: set[type[Content]] = set()
        self._drops_break = False  # the next line break only joins a text with an earlier one of its kind

    def push(self, parts: Sequence[AnswerPart | ToolCallReply]) -> list[BlockEvent]:
        """Return the events of more of the answer."""
        return [event for part in parts for event in self._events(part)]

    def close(self) -> list[BlockEvent]:
        """Return the events that end the last block."""
        kind, self._open = self._open, None
        if kind is None:
            return []
        index = self._count - 1
        signed: list[BlockEvent] = [BlockDelta(index, SignatureDelta())] if kind is ThinkingContent else []
        return [*signed, BlockStop(index)]

    def _events(self, part: AnswerPart | ToolCallReply) -> list[BlockEvent]:
        if isinstance(part, AnswerPart):
            return [*self._text(TextContent(""), part.content), *self._text(ThinkingContent(""), part.reasoning)]
        events: list[BlockEvent] = []
        if isinstance(part.id, str):
            name = "toolu_" + part.id.removeprefix("call_")
            events = self._start(ToolUseContent(name, str(part.function.name), {}))
            self.has_call = True
        arguments = part.function.arguments
        return [*events, BlockDelta(self._count - 1, InputDelta(arguments))] if arguments else events

    def _text(self, empty: TextContent | ThinkingContent, text: str) -> list[BlockEvent]:
        if not text:
            return []
        kind, events = type(empty), []
        if self._kind is not kind:
            events = self.close()
            self._kind, self._drops_break = kind, kind in self._begun
        if self._drops_break:
            text, self._drops_break = text.removeprefix("\n"), False
        if not text:
            return events
        if self._open is None:
            events += self._start(empty)
        delta: BlockPart = TextDelta(text) if kind is TextContent else ThinkingDelta(text)
        return [*events, BlockDelta(self._count - 1, delta)]

    def _start(self, empty: Content) -> list[BlockEvent]:
        events = self.close()
        self._open = self._kind = type(empty)
        self._begun.add(type(empty))
        self._count += 1
        return [*events, BlockStart(self._count - 1, empty)]


def joined_blocks(events: Sequence[BlockEvent]) -> list[Content]:
    """Whole blocks from all their events. The input of a call that was cut off is empty."""
    starts = [event.content_block for event in events if isinstance(event, BlockStart)]
    pieces: list[list[str]] = [[] for _ in starts]
    for event in events:
        if isinstance(event, BlockDelta):
            pieces[event.index].append(_piece(event.delta))
    return [_whole(start, "".join(texts)) for start, texts in zip(starts, pieces, strict=True)]


def _piece(delta: BlockPart) -> str:
    match delta:
        case TextDelta():
            return delta.text
        case ThinkingDelta():
            return delta.thinking
        case InputDelta():
            return delta.partial_json
    return ""


def _whole(start: Content, text: str) -> Content:
    if isinstance(start, TextContent):
        return TextContent(text)
    if isinstance(start, ThinkingContent):
        return ThinkingContent(text)
    # As the model wrote it: a number may be more exact than one of Python's.
    given = {} if json_object(text) is None else msgspec.Raw(text.encode())
    return ToolUseContent(start.id, start.name, given)
