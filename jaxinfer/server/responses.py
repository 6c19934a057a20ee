"""Response bodies, in OpenAI's form."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct):
    """cached_tokens: prompt tokens whose KV was reused."""

    cached_tokens: int = 0


class Timings(msgspec.Struct):
    """Where the time of a request went, in milliseconds; null where there was none. Of several prompts the longest.

    queue_ms: until it got a slot. prefill_ms: from then to its first token. time_to_first_token_ms: from its arrival.
    decode_ms: first to last token. inter_token_ms: the mean from one token of a choice to the next. tokens_per_second:
    those that came after the first of their choice, over decode_ms.
    """

    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    time_to_first_token_ms: float | None
    inter_token_ms: float | None
    total_ms: float
    tokens_per_second: float | None
    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of a request, all its prompts and choices together. Dropped tokens are not counted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    timings: Timings | UnsetType = UNSET


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
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct):
    """A completion, or a chunk of one."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    object: str = "text_completion"


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


class FunctionCall(msgspec.Struct):
    """What is called. arguments: a JSON object as text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """A call that the model asks for. index: its number in the answer, in a stream only."""

    id: str
    function: FunctionCall
    type: str = "function"
    index: int | UnsetType = UNSET


class ChatMessage(msgspec.Struct):
    """What the assistant said; reasoning is vLLM's name of reasoning_content."""

    content: str | None
    role: str = "assistant"
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    """The answer to a conversation."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Delta(msgspec.Struct):
    """What a chunk adds to a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """What a chunk adds to an answer."""

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
    prompt_token_ids: list[int] | UnsetType = UNSET
