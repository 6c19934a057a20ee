"""What the edge measures of a request, under vLLM's names."""

import pytest
from prometheus_client import CollectorRegistry

from jaxinfer.engine.types import EngineStats, ModelInfo, RequestTimes
from jaxinfer.metrics import RequestTimer, ServerMetrics
from jaxinfer.metrics import requests as module
from jaxinfer.metrics.requests import make_request_metrics

LABELS = {"model_name": "m"}


def test_queue_prefill_and_decode(monkeypatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "perf_counter", lambda: now)
    registry = CollectorRegistry()
    timer = RequestTimer(make_request_metrics(registry, "m"))
    now = 101.0
    timer.started(RequestTimes(queue=0.25, prefill=0.5))
    timer.tokens(0)
    now = 101.5
    timer.tokens(1)
    now = 103.0
    timer.tokens(0)
    now = 104.0
    timer.request_ended(7, 3)

    def value(name: str, ending: str = "sum") -> float | None:
        return registry.get_sample_value(f"vllm:{name}_{ending}", LABELS)

    assert value("request_queue_time_seconds") == 0.25
    assert value("request_prefill_time_seconds") == 0.5
    assert value("request_decode_time_seconds") == 2.0
    assert value("e2e_request_latency_seconds") == 4.0
    assert value("time_to_first_token_seconds") == 1.0
    assert value("time_to_first_token_seconds", "count") == 1
    assert value("inter_token_latency_seconds") == 2.0


def test_a_request_without_a_token_has_no_decode_time() -> None:
    registry = CollectorRegistry()
    timer = RequestTimer(make_request_metrics(registry, "m"))
    timer.request_ended(7, 0)
    assert registry.get_sample_value("vllm:request_decode_time_seconds_count", LABELS) == 0
    assert registry.get_sample_value("vllm:e2e_request_latency_seconds_count", LABELS) == 1


def test_step_faults_are_counted() -> None:
    metrics = ServerMetrics(ModelInfo("m", 64, 61, 4, 4, 40), "m")
    assert (
        'jaxinfer:step_faults_total{model_name="m"} 3.0'
        in metrics.exposition(EngineStats(0, 0, 0, 39, step_faults=3)).decode()
    )


@pytest.mark.parametrize(("name", "value"), [("prompt_tokens_cached_total", 12), ("prompt_tokens_total", 20)])
def test_cached_prompt_tokens(name: str, value: int) -> None:
    metrics = ServerMetrics(ModelInfo("m", 64, 61, 4, 4, 40), "m")
    text = metrics.exposition(EngineStats(0, 0, 0, 39, prefix_queries=20, prefix_hits=12, prompt_tokens=20)).decode()
    assert f'vllm:{name}{{model_name="m"}} {value:.1f}' in text
