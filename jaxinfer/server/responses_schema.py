"""Response bodies and events of /v1/responses, in OpenAI's form."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from jaxinfer.server.reply_schema import TokenLogprob
from jaxinfer.serving.usage import Timings

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct):
    """Text of a message."""

    text: str = ""
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)
    annotations: list[Any] = msgspec.field(default_factory=list)
    type: str = "output_text"


class ReasoningText(msgspec.Struct):
    """Text of a thought."""

    text: str = ""
    type: str = "reasoning_text"


class OutputMessage(msgspec.Struct):
    """A message of the assistant."""

    id: str
    status: Status
    content: list[OutputText]
    role: str = "assistant"
    type: str = "message"


class ReasoningItem(msgspec.Struct):
    """A thought of the assistant. There are no summaries."""

    id: str
    status: Status
    content: list[ReasoningText]
    summary: list[Any] = msgspec.field(default_factory=list)
    type: str = "reasoning"


class FunctionCallItem(msgspec.Struct):
    """A call of a function. namespace: of the function, if it is in one."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str = ""
    namespace: str | UnsetType = UNSET
    type: str = "function_call"


class CustomCallItem(msgspec.Struct):
    """A call of a custom tool."""

    id: str
    status: Status
    call_id: str
    name: str
    input: str = ""
    namespace: str | UnsetType = UNSET
    type: str = "custom_tool_call"


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem | CustomCallItem


class InputTokensDetails(msgspec.Struct):
    """cached_tokens: those whose KV was reused."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """reasoning_tokens: those of the answer that are reasoning."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    timings: Timings | UnsetType = UNSET


class ResponseFailure(msgspec.Struct):
    """Why a response failed."""

    code: str
    message: str


class Response(msgspec.Struct, kw_only=True):
    """A response: its output, and what it was asked for."""

    id: str
    created_at: int
    model: str
    status: Status = "in_progress"
    output: list[Any] = msgspec.field(default_factory=list)
    usage: ResponseUsage | UnsetType = UNSET
    completed_at: int | None = None
    error: ResponseFailure | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    user: str | UnsetType
    background: bool = False
    service_tier: str = "default"
    object: str = "response"


class ResponseEvent(msgspec.Struct):
    """An event of the whole response."""

    type: str
    sequence_number: int
    response: Response | msgspec.Raw


class ItemEvent(msgspec.Struct):
    """An item begins or ends."""

    type: str
    sequence_number: int
    output_index: int
    item: OutputItem


class PartEvent(msgspec.Struct):
    """A part of a message or a thought begins or ends."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    part: OutputText | ReasoningText
    content_index: int = 0


class DeltaEvent(msgspec.Struct):
    """More of an item's text. content_index: none for calls. logprobs: for messages only."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    delta: str
    content_index: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class DoneEvent(msgspec.Struct):
    """The whole text of an item, under the name that its kind has for it."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ErrorEvent(msgspec.Struct):
    """The stream ends with an error."""

    type: str
    sequence_number: int
    code: str | None
    message: str
    param: str | None


class DeletedResponse(msgspec.Struct):
    """A response that is not stored any more."""

    id: str
    object: str = "response"
    deleted: bool = True


class InputItems(msgspec.Struct):
    """A page of the items that a response was made of."""

    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"
