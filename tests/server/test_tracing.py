"""One OpenTelemetry span a request, as a collector gets it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from jaxinfer.errors import ParameterError
from jaxinfer.serving import config as config_module
from jaxinfer.serving import tracing
from jaxinfer.serving.config import ServerConfig
from tests.server.conftest import Served

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ENDPOINT = "http://127.0.0.1:1"


@pytest.fixture
def exporter(monkeypatch) -> InMemorySpanExporter:
    made = InMemorySpanExporter()
    monkeypatch.setattr(tracing, "make_exporter", lambda endpoint: made)
    return made


async def spans_of(served: Served, exporter: InMemorySpanExporter, count: int = 1) -> list[Any]:
    """Spans that have ended, once there are `count`; they are sent some seconds later."""
    async with asyncio.timeout(20):
        while len(exporter.get_finished_spans()) < count:
            await asyncio.sleep(0.05)
    return list(exporter.get_finished_spans())


async def test_a_request_is_one_span_that_continues_its_clients_trace(serve, exporter, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    served: Served = await serve(otlp_traces_endpoint=ENDPOINT)
    body = {"prompt": "hi", "max_tokens": 4, "n": 2, "temperature": 0.5, "seed": 3}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
    answer = await served.post("/v1/completions", body, headers=headers)
    assert answer.status == 200
    (span,) = await spans_of(served, exporter)
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert (span.name, span.kind.name, span.status.is_ok) == ("text_completion fake", "SERVER", True)
    told = dict(span.attributes)
    assert 0 < told.pop("gen_ai.latency.time_to_first_token") <= told["gen_ai.latency.e2e"]
    assert 0 < told.pop("gen_ai.latency.time_in_model_decode") <= told.pop("gen_ai.latency.e2e")
    prompt = len(served.engine.tokenizer.encode("hi"))
    assert told == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "jaxinfer",
        "gen_ai.request.model": "fake",
        "gen_ai.response.model": "fake",
        "gen_ai.request.id": "mine",
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 3,
        "gen_ai.request.choice.count": 2,
        "gen_ai.latency.time_in_queue": 0.25,
        "gen_ai.latency.time_in_model_prefill": 0.5,
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.output_tokens": 8,
        "gen_ai.usage.prompt_tokens": prompt,
        "gen_ai.usage.completion_tokens": 8,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ("length", "length"),
    }
    assert span.resource.attributes["service.name"] == "jaxinfer"


async def test_anthropics_messages_are_chats(serve, exporter, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    served: Served = await serve(otlp_traces_endpoint=ENDPOINT)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    answer = await served.post("/v1/messages", body)
    (span,) = await spans_of(served, exporter)
    assert span.name == "chat fake"
    told = {name: span.attributes[f"gen_ai.{name}"] for name in ("request.id", "request.max_tokens", "operation.name")}
    expected = {"request.id": answer.headers["request-id"], "request.max_tokens": 4, "operation.name": "chat"}
    assert told == expected


async def test_requests_that_end_badly_are_spans_too(serve, exporter, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    served: Served = await serve(otlp_traces_endpoint=ENDPOINT, sse_keep_alive_interval=0.01)
    served.engine.gate.clear()
    stream = await served.client.completions.create(model="fake", prompt="a", stream=True)
    await stream.close()
    (gone,) = await spans_of(served, exporter)
    assert gone.attributes["error.type"] in ("client_gone", "CancelledError")
    assert gone.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert gone.parent is None
    task = asyncio.create_task(served.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}))
    while not served.engine.active:
        await asyncio.sleep(0.01)
    served.engine.fail_requests("broken")
    assert (await task).status == 500
    _, failed = await spans_of(served, exporter, 2)
    assert failed.name == "chat fake"
    assert failed.attributes["error.type"] == "RequestError"
    assert not failed.status.is_ok


async def test_a_collector_gets_what_is_left_when_the_server_ends(serve, monkeypatch) -> None:
    got: list[str] = []

    class Collector(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            got.extend(s.name for r in request.resource_spans for scope in r.scope_spans for s in scope.spans)
            return trace_service_pb2.ExportTraceServiceResponse()

    collector = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Collector(), collector)
    port = collector.add_insecure_port("127.0.0.1:0")
    collector.start()
    try:
        made = tracing.Tracing(f"http://127.0.0.1:{port}", "m")
        span = made.begin("chat", None, {"traceparent": "not one"})
        span._span.end()
        await asyncio.to_thread(made.flush)
        assert got == ["chat m"]
    finally:
        collector.stop(0)


def test_without_the_extra_the_endpoint_is_refused(monkeypatch) -> None:
    ServerConfig(otlp_traces_endpoint=ENDPOINT)
    monkeypatch.setattr(config_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ParameterError, match=r"opentelemetry\.sdk.*jaxinfer\[otel\]"):
        ServerConfig(otlp_traces_endpoint=ENDPOINT)
    ServerConfig()


def test_an_endpoint_is_a_url() -> None:
    with pytest.raises(ParameterError, match=r"otlp_traces_endpoint.*must begin with http"):
        ServerConfig(otlp_traces_endpoint="127.0.0.1:4317")
