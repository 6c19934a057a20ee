"""Usage: what a request took, in tokens and time, in OpenAI's form."""

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct):
    """cached_tokens: prompt tokens whose KV was reused."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    """reasoning_tokens: those of the completion that are reasoning."""

    reasoning_tokens: int


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
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
