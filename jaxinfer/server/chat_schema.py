"""Bodies of conversations as they come in. A field that is not named here is refused."""

from typing import Any, Literal

import msgspec

from jaxinfer.server.schema import GenerateBody


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the assistant called. arguments: a JSON object as text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One call in a message of the assistant. index: what a stream's pieces carry, and clients send back."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None


class Message(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One message. reasoning: vLLM's name of reasoning_content. What only media use may be there, empty."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    refusal: Any = None


class Function(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A function that the model may call. parameters: a JSON Schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


class Thinking(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled"]


class ChatBody(GenerateBody, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    thinking: Thinking | None = None
