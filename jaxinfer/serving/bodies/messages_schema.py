"""Bodies of Anthropic's Messages API as they come in.

Unknown keys inside an object are ignored, as in chats: `cache_control` and `citations` need no effect.
"""

from typing import Any, Literal

import msgspec


class TextBlock(msgspec.Struct, tag_field="type", tag="text", kw_only=True):
    """A text."""

    text: str


class ImageBlock(msgspec.Struct, tag_field="type", tag="image", kw_only=True):
    """An image, which is refused."""


class DocumentBlock(msgspec.Struct, tag_field="type", tag="document", kw_only=True):
    """A document, which is refused."""


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking", kw_only=True):
    """A thought of the assistant. Its signature is not checked."""

    thinking: str


class RedactedThinkingBlock(msgspec.Struct, tag_field="type", tag="redacted_thinking", kw_only=True):
    """An encrypted thought of another model, which is left out."""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use", kw_only=True):
    """A call of the assistant."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result", kw_only=True):
    """The result of a call."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = None


Block = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)  # fmt: skip


class MessageBody(msgspec.Struct, kw_only=True):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolBody(msgspec.Struct, kw_only=True):
    """A tool. type: absent or `custom` for a tool of the client, anything else for one that Anthropic defines."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoiceBody(msgspec.Struct, kw_only=True):
    """A choice of whether, and which, tools are called. name: with type `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingBody(msgspec.Struct, kw_only=True):
    """A switch for thinking. `adaptive` turns it on; budget_tokens has no effect. display: `omitted` hides thoughts."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class FormatBody(msgspec.Struct, kw_only=True):
    """A format that the answer follows."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputBody(msgspec.Struct, kw_only=True):
    """Effort of the model's thinking, and the format of its answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: FormatBody | None = None


class MetadataBody(msgspec.Struct, kw_only=True):
    """user_id: the user of the key, as `user` in chats."""

    user_id: str | None = None


REFUSED: dict[str, tuple[Any, ...]] = {"container": (), "mcp_servers": ([],), "thread": ()}
"""Fields that are not supported, each with values that ask for nothing: any other is refused by name."""

THREADS_REFUSED = "thread_unsupported_request"
"""Anthropic's code of the error by which clients learn to send whole conversations instead of `thread`."""


class CountTokensBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/messages/count_tokens. Null means: absent. output_format: the older place of `output_config.format`."""

    messages: list[MessageBody]
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: ToolChoiceBody | None = None
    thinking: ThinkingBody | None = None
    output_config: OutputBody | None = None
    output_format: FormatBody | None = None
    # Refused, see REFUSED.
    container: Any = None
    mcp_servers: Any = None
    thread: Any = None
    # Accepted, without effect.
    betas: Any = None
    cache_control: Any = None
    context_management: Any = None
    speed: str | None = None


class MessagesBody(CountTokensBody, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None
    metadata: MetadataBody | None = None
    # Accepted, without effect.
    diagnostics: Any = None
    inference_geo: str | None = None
    service_tier: str | None = None
