"""Response bodies and events in the form of Anthropic's Messages API."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextContent(msgspec.Struct, tag_field="type", tag="text"):
    """A text of the answer."""

    text: str


class ThinkingContent(msgspec.Struct, tag_field="type", tag="thinking"):
    """A thought. signature: empty, since thoughts need none here."""

    thinking: str
    signature: str = ""


class ToolUseContent(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call. input: an object; empty at the start of a streamed call."""

    id: str
    name: str
    input: Any


Content = TextContent | ThinkingContent | ToolUseContent


class ThinkingTokens(msgspec.Struct):
    """Output tokens that are thoughts."""

    thinking_tokens: int


class MessagesUsage(msgspec.Struct):
    """Tokens of a request. input_tokens: those that were not in the prefix cache. Nothing is counted as written to it,
    since it keeps every prompt."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    output_tokens_details: ThinkingTokens | UnsetType = UNSET


class MessageReply(msgspec.Struct, tag_field="type", tag="message"):
    """The answer; without content and stop_reason at the start of a stream."""

    id: str
    model: str
    content: list[Content]
    usage: MessagesUsage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    role: str = "assistant"


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """First event of a stream."""

    message: MessageReply


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """Begins a block, which is empty yet."""

    index: int
    content_block: Content


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """More of a thought."""

    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """The signature that ends a thought."""

    signature: str = ""


class InputDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """More of a call's input, as JSON."""

    partial_json: str


BlockPart = TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """Adds to a block."""

    index: int
    delta: BlockPart


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """Ends a block."""

    index: int


class Stop(msgspec.Struct):
    """Why an answer ended. stop_sequence: the one that ended it."""

    stop_reason: StopReason
    stop_sequence: str | None = None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """Tells how the answer ended, behind all blocks."""

    delta: Stop
    usage: MessagesUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """Last event of a stream that ends well."""


BlockEvent = BlockStart | BlockDelta | BlockStop
