"""Where the time of a request went, from what was measured at the edge and told by the engine."""

from collections.abc import Iterable, Sequence

from jaxinfer.metrics import RequestTimer
from jaxinfer.serving.usage import Timings


def timings_of(timers: Sequence[RequestTimer], tokens: int, cached: int) -> Timings:
    """Of a request of one prompt, or of several. tokens: those kept of all choices; cached: of prompts."""
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
