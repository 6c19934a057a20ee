"""Usage: what a request took, in tokens and time, in OpenAI's form."""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from jaxinfer.metrics import RequestTimer


class PromptTokensDetails(msgspec.Struct):
    """cached_tokens: prompt tokens whose KV was reused."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    """reasoning_tokens: those of the completion that are reasoning.

    Of a request with a prediction: accepted_prediction_tokens: drafts from it that are part of the completion.
    rejected_prediction_tokens: those that are not; completion_tokens does not count them.
    """

    reasoning_tokens: int | UnsetType = UNSET
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class Timings(msgspec.Struct):
    """Times of a request, in milliseconds; null for a part that did not happen. Of several prompts the longest.

    queue_ms: until it got a slot. prefill_ms: from then to its first token. time_to_first_token_ms: from its arrival.
    decode_ms: first to last token. inter_token_ms: the mean from one token of a choice to the next. tokens_per_second:
    tokens that came after the first of their choice, over decode_ms.
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


def timings_of(timers: Sequence[RequestTimer], tokens: int, cached: int) -> Timings:
    """Return the times of a request of one prompt, or of several, as the API process and the engine measured them.

    tokens: those kept of all choices; cached: of prompts.
    """
    times = [timer.times for timer in timers if timer.times is not None]
    decode = _longest(timer.decode for timer in timers)
    later = tokens - sum(timer.num_begun for timer in timers)
    between = sum(timer.interval_sum for timer in timers)
    return Timings(
        queue_ms=_ms(_longest(told.queue for told in times)),
        prefill_ms=_ms(_longest(told.prefill for told in times)),
        decode_ms=_ms(decode),
        time_to_first_token_ms=_ms(_longest(timer.first for timer in timers)),
        inter_token_ms=_ms(between / later) if later > 0 else None,
        total_ms=round(max(timer.age for timer in timers) * 1e3, 3),
        tokens_per_second=later / decode if later > 0 and decode else None,
        cached_tokens=cached,
    )


def server_timing(timings: Timings) -> str:
    """The value of the header Server-Timing, of W3C's Server Timing: what a browser's developer tools show."""
    parts = {
        "queue": timings.queue_ms,
        "prefill": timings.prefill_ms,
        "decode": timings.decode_ms,
        "total": timings.total_ms,
    }
    return ", ".join(f"{name};dur={value:.3f}" for name, value in parts.items() if value is not None)


def _longest(seconds: Iterable[float | None]) -> float | None:
    return max((value for value in seconds if value is not None), default=None)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
