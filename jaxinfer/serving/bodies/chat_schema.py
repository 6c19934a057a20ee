"""Bodies of conversations as they come in.

Unknown keys inside an object are ignored: clients echo what another library added to a message, a part or a tool.
"""

from typing import Any, Literal

import msgspec

from jaxinfer.serving.bodies.schema import GenerateBody


class CalledFunction(msgspec.Struct, kw_only=True):
    """A function that the assistant called. arguments: a JSON object, as text or, from some clients, as it is."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, kw_only=True):
    """One call in a message of the assistant. index: what a stream's pieces carry, and clients send back."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None


class Message(msgspec.Struct, kw_only=True):
    """One message. reasoning and thinking: vLLM's and Ollama's names of reasoning_content.

    audio and function_call may only be empty. refusal: what the assistant said instead of a content.
    """

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    audio: Any = None
    function_call: Any = None
    refusal: Any = None


class Function(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function that the model may call. parameters: a JSON Schema of its arguments.

    strict: calls of it follow the schema also where the model chooses to call.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


class Thinking(msgspec.Struct, kw_only=True):
    """A switch for thinking before the answer."""

    type: Literal["enabled", "disabled"]


class PredictionPart(msgspec.Struct, kw_only=True):
    """A piece of a prediction."""

    type: Literal["text"]
    text: str


class Prediction(msgspec.Struct, kw_only=True):
    """A prediction of most of the answer. content: a text, or pieces that follow one another."""

    type: Literal["content"]
    content: str | list[PredictionPart]

    @property
    def text(self) -> str:
        """All of it."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatBody(GenerateBody, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    thinking: bool | Thinking | None = None
    enable_thinking: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool | None = None
    echo: bool | None = None
    prediction: Prediction | None = None


class TokenizeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /tokenize: a text, or a conversation as the chat template renders it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking: bool | Thinking | None = None
    enable_thinking: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    return_token_strs: bool | None = None
    chat_template: Any = None
    media_io_kwargs: Any = None
    mm_processor_kwargs: Any = None
