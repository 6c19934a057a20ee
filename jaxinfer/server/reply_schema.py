"""Response bodies, in OpenAI's form."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from jaxinfer.serving.usage import Usage


class CompletionLogprobs(msgspec.Struct):
    """The older form of log-probabilities; one entry a token in every list. The first token of a prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct):
    """One continuation of one prompt, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET


class CompletionChunk(msgspec.Struct):
    """An event of a streamed completion."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    object: str = "text_completion"
    system_fingerprint: str | UnsetType = UNSET


class Completion(msgspec.Struct):
    """A completion. Keys that vLLM sends as null are there."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
    object: str = "text_completion"
    service_tier: None = None
    kv_transfer_params: None = None


class TopLogprob(msgspec.Struct):
    """A token that could have come. bytes: UTF-8, perhaps half a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """A token that came, and the likeliest at its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities of a chat choice."""

    content: list[TokenLogprob]


class FunctionCall(msgspec.Struct, kw_only=True):
    """A function and its arguments. arguments: a JSON object as text. In a stream it comes in pieces, the name with the
    first."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallReply(msgspec.Struct, kw_only=True):
    """A call that the model asks for. index: its number in the answer, in a stream only; id and type come with the
    first piece there."""

    id: str | UnsetType = UNSET
    function: FunctionCall
    type: str | UnsetType = UNSET
    index: int | UnsetType = UNSET


class ChatMessage(msgspec.Struct):
    """The assistant's answer. reasoning: vLLM's name of reasoning_content. tool_calls: absent where there are none."""

    content: str | None
    role: str = "assistant"
    refusal: str | None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallReply] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletion(msgspec.Struct):
    """The answer to a conversation. Keys that vLLM sends as null are there."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    object: str = "chat.completion"
    service_tier: None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None
    kv_transfer_params: None = None


class Delta(msgspec.Struct):
    """Fields that a chunk adds to a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallReply] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """A chunk's part of one choice."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct):
    """One event of a streamed answer."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    object: str = "chat.completion.chunk"
    system_fingerprint: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
