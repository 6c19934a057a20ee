"""One OpenTelemetry span a request, for the collector that `--otlp-traces-endpoint` names.

Attributes are those of the semantic conventions of generative AI, and vLLM's for latencies, in seconds. Nothing of a
prompt or of an answer is told.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.serving.usage import Timings, Usage

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

_FLUSH_MILLISECONDS = 2000


class Outcome(NamedTuple):
    """Result of a request. error: the kind of error that ended it, or None."""

    usage: Usage
    timings: Timings
    finish_reasons: Sequence[str]
    error: str | None


def make_exporter(endpoint: str) -> "SpanExporter":
    """Sends spans by OTLP over gRPC, without TLS to an `http://` endpoint."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint)


class Tracing:
    """Makes spans. Those that have ended are sent by a thread, some seconds later."""

    def __init__(self, endpoint: str, model_name: str):
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "jaxinfer")})
        self._provider: TracerProvider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(make_exporter(endpoint)))
        self._tracer = self._provider.get_tracer("jaxinfer")
        self._model_name = model_name

    def begin(self, operation: str, request_id: str | None, headers: Mapping[str, str]) -> "RequestSpan":
        """A span that begins now, a child of what the header `traceparent` (W3C) names."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        told: dict[str, AttributeValue] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "jaxinfer",
            "gen_ai.request.model": self._model_name,
            "gen_ai.response.model": self._model_name,
        }
        if request_id is not None:
            told["gen_ai.request.id"] = request_id
        parent = TraceContextTextMapPropagator().extract(headers)
        name = f"{operation} {self._model_name}"
        return RequestSpan(self._tracer.start_span(name, parent, kind=SpanKind.SERVER, attributes=told))

    def flush(self) -> None:
        """Sends what has ended, for at most two seconds. Waits."""
        self._provider.force_flush(_FLUSH_MILLISECONDS)


class RequestSpan:
    """The span of one request."""

    def __init__(self, span: "Span"):
        self._span = span

    def end(self, requests: Sequence[GenerateRequest], outcome: Outcome) -> None:
        """Ends it now, with what was asked for and what came."""
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attributes({**_asked(requests), **_came(outcome)})
        if outcome.error is not None:
            self._span.set_attribute("error.type", outcome.error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def _asked(requests: Sequence[GenerateRequest]) -> "dict[str, AttributeValue]":
    params = requests[0].sampling
    said: dict[str, AttributeValue | None] = {
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k or None,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.frequency_penalty": params.frequency_penalty or None,
        "gen_ai.request.presence_penalty": params.presence_penalty or None,
        "gen_ai.request.choice.count": sum(request.sampling.n for request in requests),
    }
    return {name: value for name, value in said.items() if value is not None}


def _came(outcome: Outcome) -> "dict[str, AttributeValue]":
    usage, timings = outcome.usage, outcome.timings
    seconds = {
        "gen_ai.latency.time_in_queue": timings.queue_ms,
        "gen_ai.latency.time_to_first_token": timings.time_to_first_token_ms,
        "gen_ai.latency.time_in_model_prefill": timings.prefill_ms,
        "gen_ai.latency.time_in_model_decode": timings.decode_ms,
        "gen_ai.latency.e2e": timings.total_ms,
    }
    told: dict[str, AttributeValue] = {name: value * 1e-3 for name, value in seconds.items() if value is not None}
    return told | {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.prompt_tokens": usage.prompt_tokens,
        "gen_ai.usage.completion_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": timings.cached_tokens,
        "gen_ai.response.finish_reasons": list(outcome.finish_reasons),
    }
