"""Bodies of /v1/responses as they come in. Unknown keys inside an object are ignored, as in conversations.

The `type` of an item or a tool decides which of its fields count (requests/response_items.py, response_tools.py).
"""

from typing import Any, Literal

import msgspec

from jaxinfer.serving.bodies.chat_schema import ReasoningEffort
from jaxinfer.serving.bodies.schema import GenerateBody


class TextPart(msgspec.Struct, kw_only=True):
    """A piece of reasoning, or of a summary of it."""

    text: str


class Item(msgspec.Struct, kw_only=True):
    """An item of the input. Without a type it is a message if it has a role, and otherwise a reference.

    output: what a tool said. input: the text that a custom tool was called with.
    """

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[dict[str, Any]] | None = None
    summary: list[TextPart] | None = None
    call_id: str | None = None
    namespace: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[dict[str, Any]] | None = None


class ResponsesTool(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function, a custom tool, a namespace with tools of its own, or one that OpenAI's servers run.

    format: of a custom tool's input.
    """

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    tools: list["ResponsesTool"] | None = None


class Reasoning(msgspec.Struct, kw_only=True):
    """Reasoning before the answer. summary: which kind of summary is wanted; there is none here."""

    effort: ReasoningEffort | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextOptions(msgspec.Struct, kw_only=True):
    """Format of the text."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesBody(GenerateBody, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/responses. Has the sampling parameters of the other endpoints, too."""

    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Refused unless they ask for nothing.
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
