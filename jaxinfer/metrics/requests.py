"""RequestTimer: what the edge measures of one request."""

import time
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram

from jaxinfer.engine.types import FinishReason, RequestTimes

_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_INTER_TOKEN = (
    0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.75, 1, 2.5, 5,
)  # fmt: skip
_WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
_PHASE = (0.001, 0.005, 0.01, 0.05, 0.1, *_WHOLE[2:], 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)


class RequestMetrics(NamedTuple):
    """The series that requests are counted in, bound to a model's name."""

    first_token: Histogram
    inter_token: Histogram
    whole: Histogram
    queue: Histogram
    prefill: Histogram
    decode: Histogram
    prompt_tokens: Histogram
    generation_tokens: Histogram
    success: dict[FinishReason, Counter]


def make_request_metrics(registry: CollectorRegistry, model_name: str) -> RequestMetrics:
    """Registers the series in `registry`; times in seconds."""

    def histogram(name: str, text: str, edges: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ["model_name"], buckets=edges, registry=registry).labels(model_name)

    done = Counter("vllm:request_success", "Choices that ended.", ["model_name", "finished_reason"], registry=registry)
    return RequestMetrics(
        first_token=histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", _FIRST_TOKEN),
        inter_token=histogram("vllm:inter_token_latency_seconds", "Between tokens of a choice.", _INTER_TOKEN),
        whole=histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.", _WHOLE),
        queue=histogram("vllm:request_queue_time_seconds", "Until a request gets its slot.", _PHASE),
        prefill=histogram("vllm:request_prefill_time_seconds", "From slot to first token.", _PHASE),
        decode=histogram("vllm:request_decode_time_seconds", "First token to last token.", _PHASE),
        prompt_tokens=histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", _TOKENS),
        generation_tokens=histogram("vllm:request_generation_tokens", "Tokens generated for a request.", _TOKENS),
        success={reason: done.labels(model_name, reason.value) for reason in FinishReason},
    )


class RequestTimer:
    """Measures one request from its arrival on."""

    def __init__(self, metrics: RequestMetrics):
        self._metrics = metrics
        self._arrival = time.perf_counter()
        self._first: float | None = None
        self._last: dict[int, float] = {}

    def tokens(self, index: int) -> None:
        """A choice has got tokens just now."""
        now = time.perf_counter()
        last = self._last.get(index)
        if last is not None:
            self._metrics.inter_token.observe(now - last)
        elif self._first is None:
            self._first = now
            self._metrics.first_token.observe(now - self._arrival)
        self._last[index] = now

    def started(self, times: RequestTimes) -> None:
        """The engine has told how long the request took to its first token."""
        self._metrics.queue.observe(times.queue)
        self._metrics.prefill.observe(times.prefill)

    def choice_ended(self, reason: FinishReason) -> None:
        """A choice has ended."""
        self._metrics.success[reason].inc()

    def request_ended(self, prompt_tokens: int, generation_tokens: int) -> None:
        """Every choice has ended."""
        self._metrics.whole.observe(time.perf_counter() - self._arrival)
        if self._first is not None:
            self._metrics.decode.observe(max(self._last.values()) - self._first)
        self._metrics.prompt_tokens.observe(prompt_tokens)
        self._metrics.generation_tokens.observe(generation_tokens)
