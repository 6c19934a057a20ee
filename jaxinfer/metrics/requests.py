"""RequestTimer: what the edge measures of one request."""

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from jaxinfer.engine.types import FinishReason, RequestTimes
from jaxinfer.metrics.counts import Values

_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_INTER_TOKEN = (
    0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.75, 1, 2.5, 5,
)  # fmt: skip
_WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
_PHASE = (0.001, 0.005, 0.01, 0.05, 0.1, *_WHOLE[2:], 1920, 7680)
_COUNT = (1, 2, 5, 10, 20)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)


class _Family(NamedTuple):
    name: str
    text: str
    edges: Sequence[float]

    @property
    def size(self) -> int:
        """Numbers that it takes: one up to each edge, one above, and the sum of what was observed."""
        return len(self.edges) + 2


_HISTOGRAMS = {
    "first_token": _Family("vllm:time_to_first_token_seconds", "Arrival to first token.", _FIRST_TOKEN),
    "inter_token": _Family("vllm:inter_token_latency_seconds", "Between tokens of a sequence.", _INTER_TOKEN),
    "whole": _Family("vllm:e2e_request_latency_seconds", "Arrival to last token.", _WHOLE),
    "queue": _Family("vllm:request_queue_time_seconds", "Until a request gets its slot.", _PHASE),
    "prefill": _Family("vllm:request_prefill_time_seconds", "From slot to first token.", _PHASE),
    "decode": _Family("vllm:request_decode_time_seconds", "First token to last token.", _PHASE),
    "prompt_tokens": _Family("vllm:request_prompt_tokens", "Prompt tokens of a request.", _TOKENS),
    "generation_tokens": _Family("vllm:request_generation_tokens", "Tokens generated for a request.", _TOKENS),
    "output_token": _Family("vllm:request_time_per_output_token_seconds", "Mean of a request, after the first token of "
                            "each sequence.", _INTER_TOKEN),
    "inference": _Family("vllm:request_inference_time_seconds", "From slot to last token.", _PHASE),
    "longest_sequence": _Family("vllm:request_max_num_generation_tokens", "Tokens of a request's longest sequence.",
                              _TOKENS),
    "n": _Family("vllm:request_params_n", "`n` of requests.", _COUNT),
    "max_tokens": _Family("vllm:request_params_max_tokens", "`max_tokens` of requests that have it.", _TOKENS),
    "preemptions": _Family("vllm:request_num_preemptions", "Preemptions of a request, all sequences together.",
                           (0, *_COUNT)),
    "computed_tokens": _Family("vllm:request_prefill_kv_computed_tokens",
                               "Prompt tokens of a request whose KV was computed, not found.", _TOKENS),
}  # fmt: skip
_SUCCESS = "vllm:request_success", "Sequences that ended."
_REJECTIONS = "vllm:admission_rejections", "Requests refused because too many wait, or are under way (429)."
REJECTION_REASONS: tuple[str, ...] = ("max_waiting", "max_open_requests")
"""The setting that refused a request."""

NUM_VALUES = sum(family.size for family in _HISTOGRAMS.values()) + len(FinishReason) + len(REJECTION_REASONS)
"""Numbers in which requests are counted."""
_FIRST_REJECTION = NUM_VALUES - len(REJECTION_REASONS)
_FIRST_END = _FIRST_REJECTION - len(FinishReason)


class Histogram:
    """Counts what it observes in a part of `values`, from `at` on. Belongs to one thread."""

    def __init__(self, values: Values, at: int, edges: Sequence[float]):
        self._values = values
        self._at = at
        self._edges = edges
        self._sum = at + len(edges) + 1

    def observe(self, value: float) -> None:
        """Adds one observation."""
        values = self._values
        values[self._at + bisect_left(self._edges, value)] += 1
        values[self._sum] += value


class RequestMetrics:
    """The series that the requests of one process are counted in. values: NUM_VALUES of them."""

    def __init__(self, values: Values):
        places = dict(zip(_HISTOGRAMS, _places(), strict=True))

        def histogram(field: str) -> Histogram:
            return Histogram(values, places[field], _HISTOGRAMS[field].edges)

        self.first_token = histogram("first_token")
        self.inter_token = histogram("inter_token")
        self.whole = histogram("whole")
        self.queue = histogram("queue")
        self.prefill = histogram("prefill")
        self.decode = histogram("decode")
        self.prompt_tokens = histogram("prompt_tokens")
        self.generation_tokens = histogram("generation_tokens")
        self.output_token = histogram("output_token")
        self.inference = histogram("inference")
        self.longest_sequence = histogram("longest_sequence")
        self.n = histogram("n")
        self.max_tokens = histogram("max_tokens")
        self.preemptions = histogram("preemptions")
        self.computed_tokens = histogram("computed_tokens")
        self._values = values
        self._ended = {reason: _FIRST_END + i for i, reason in enumerate(FinishReason)}
        self._rejected = {reason: _FIRST_REJECTION + i for i, reason in enumerate(REJECTION_REASONS)}

    def rejected(self, reason: str) -> None:
        """Counts a request that was refused for one of REJECTION_REASONS."""
        self._values[self._rejected[reason]] += 1

    def ended(self, reason: FinishReason) -> None:
        """Counts a sequence that has ended."""
        self._values[self._ended[reason]] += 1


def request_families(values: Sequence[float], model_name: str) -> Iterator[Metric]:
    """The families of NUM_VALUES numbers, those of one process or sums over several."""
    for family, at in zip(_HISTOGRAMS.values(), _places(), strict=True):
        labels = common_labels(family.name, model_name)
        counts, total = values[at : at + family.size - 1], values[at + family.size - 1]
        metric = HistogramMetricFamily(family.name, family.text, labels=[*labels])
        metric.add_metric([*labels.values()], cumulative(family.edges, counts), total)
        yield metric
    yield _counter(*_SUCCESS, "finished_reason", dict(zip(FinishReason, values[_FIRST_END:], strict=False)), model_name)
    rejections = dict(zip(REJECTION_REASONS, values[_FIRST_REJECTION:], strict=True))
    yield _counter(*_REJECTIONS, "reason", rejections, model_name)


def _counter(name: str, text: str, label: str, values: Mapping[str, float], model_name: str) -> Metric:
    labels = common_labels(name, model_name)
    family = CounterMetricFamily(name, text, labels=[*labels, label])
    for value, count in values.items():
        family.add_metric([*labels.values(), str(value)], count)
    return family


def common_labels(name: str, model_name: str) -> dict[str, str]:
    """The labels of every series; those under vLLM's names have its number of the engine, of which there is one."""
    return {"model_name": model_name} | ({"engine": "0"} if name.startswith("vllm:") else {})


def cumulative(edges: Sequence[float], counts: Sequence[float]) -> list[tuple[str, float]]:
    """(edge, observations up to it) for each edge and above all: Prometheus' form. counts: between the edges."""
    names = [*map(str, map(float, edges)), "+Inf"]
    return list(zip(names, accumulate(map(float, counts)), strict=True))


def _places() -> list[int]:
    """Return the index of each histogram's first number."""
    return list(accumulate((family.size for family in _HISTOGRAMS.values()), initial=0))[:-1]


class EndedRequest(NamedTuple):
    """Facts about a request at its end. tokens: number for each sequence. max_tokens: None if the request set none."""

    prompt_tokens: int
    cached_tokens: int
    tokens: Sequence[int]
    preemptions: int
    max_tokens: int | None


class RequestTimer:
    """Measures one request from its arrival on. Times in seconds; None while they are not known.

    times: what the engine has told. interval_sum: all times from one token of a sequence to the next, together.
    """

    def __init__(self, metrics: RequestMetrics):
        self._metrics = metrics
        self._arrival = time.perf_counter()
        self._first: float | None = None
        self._last: dict[int, float] = {}
        self.times: RequestTimes | None = None
        self.interval_sum = 0.0

    @property
    def age(self) -> float:
        """Since the arrival."""
        return time.perf_counter() - self._arrival

    @property
    def first(self) -> float | None:
        """From the arrival to the first token."""
        return None if self._first is None else self._first - self._arrival

    @property
    def decode(self) -> float | None:
        """From the first token to the newest."""
        return None if self._first is None else max(self._last.values()) - self._first

    @property
    def num_begun(self) -> int:
        """Sequences that have got a token."""
        return len(self._last)

    def tokens(self, index: int) -> None:
        """A sequence has got tokens just now."""
        now = time.perf_counter()
        last = self._last.get(index)
        if last is not None:
            self._metrics.inter_token.observe(now - last)
            self.interval_sum += now - last
        elif self._first is None:
            self._first = now
            self._metrics.first_token.observe(now - self._arrival)
        self._last[index] = now

    def started(self, times: RequestTimes) -> None:
        """The engine has told how long the request took to its first token."""
        self.times = times
        self._metrics.queue.observe(times.queue)
        self._metrics.prefill.observe(times.prefill)

    def sequence_ended(self, reason: FinishReason) -> None:
        """A sequence has ended."""
        self._metrics.ended(reason)

    def request_ended(self, request: EndedRequest) -> None:
        """Every sequence has ended."""
        metrics, decode, tokens = self._metrics, self.decode, sum(request.tokens)
        metrics.whole.observe(self.age)
        if decode is not None:
            metrics.decode.observe(decode)
            later = tokens - self.num_begun
            if later > 0:
                metrics.output_token.observe(self.interval_sum / later)
            if self.times is not None:
                metrics.inference.observe(self.times.prefill + decode)
        metrics.prompt_tokens.observe(request.prompt_tokens)
        metrics.computed_tokens.observe(request.prompt_tokens - request.cached_tokens)
        metrics.generation_tokens.observe(tokens)
        metrics.longest_sequence.observe(max(request.tokens))
        metrics.n.observe(len(request.tokens))
        metrics.preemptions.observe(request.preemptions)
        if request.max_tokens is not None:
            metrics.max_tokens.observe(request.max_tokens)
