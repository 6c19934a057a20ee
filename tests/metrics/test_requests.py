"""What the edge measures of a request, under vLLM's names."""

import pytest

from jaxinfer.engine.types import FinishReason, RequestTimes
from jaxinfer.metrics import EndedRequest, ServerMetrics, SharedCounts
from jaxinfer.metrics import requests as module
from tests.metrics.exposition import INFO, value


def test_queue_prefill_and_decode(monkeypatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "perf_counter", lambda: now)
    metrics = ServerMetrics(INFO, "m")
    timer = metrics.timer()
    now = 101.0
    timer.started(RequestTimes(queue=0.25, prefill=0.5))
    timer.tokens(0)
    now = 101.5
    timer.tokens(1)
    now = 103.0
    timer.tokens(0)
    now = 104.0
    timer.request_ended(EndedRequest(7, cached_tokens=2, tokens=[2, 1], preemptions=3, max_tokens=9))
    assert value(metrics, "vllm:request_queue_time_seconds_sum") == 0.25
    assert value(metrics, "vllm:request_prefill_time_seconds_sum") == 0.5
    assert value(metrics, "vllm:request_decode_time_seconds_sum") == 2.0
    assert value(metrics, "vllm:e2e_request_latency_seconds_sum") == 4.0
    assert value(metrics, "vllm:time_to_first_token_seconds_sum") == 1.0
    assert value(metrics, "vllm:time_to_first_token_seconds_count") == 1
    assert value(metrics, "vllm:inter_token_latency_seconds_sum") == 2.0
    assert value(metrics, "vllm:request_prompt_tokens_sum") == 7
    assert value(metrics, "vllm:request_prefill_kv_computed_tokens_sum") == 5
    assert value(metrics, "vllm:request_time_per_output_token_seconds_sum") == 2.0  # one later token, after 2 s
    assert value(metrics, "vllm:request_inference_time_seconds_sum") == 2.5
    assert value(metrics, "vllm:request_max_num_generation_tokens_sum") == 2
    assert value(metrics, "vllm:request_params_n_sum") == 2
    assert value(metrics, "vllm:request_params_max_tokens_sum") == 9
    assert value(metrics, "vllm:request_num_preemptions_sum") == 3
    assert value(metrics, "vllm:request_generation_tokens_bucket", le="2.0") == 0
    assert value(metrics, "vllm:request_generation_tokens_bucket", le="5.0") == 1
    assert value(metrics, "vllm:request_generation_tokens_bucket", le="+Inf") == 1


@pytest.mark.parametrize(("seconds", "up_to"), [(0.001, "0.001"), (0.0011, "0.002"), (5.0, "5.0"), (5.1, "+Inf")])
def test_an_observation_is_counted_up_to_the_first_edge_that_is_not_below_it(
    seconds: float, up_to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "perf_counter", lambda: now)
    metrics = ServerMetrics(INFO, "m")
    timer = metrics.timer()
    timer.tokens(0)
    now = seconds
    timer.tokens(0)
    edges = [*map(str, map(float, module._INTER_TOKEN)), "+Inf"]
    counts = [value(metrics, "vllm:inter_token_latency_seconds_bucket", le=edge) for edge in edges]
    assert counts == [float(i >= edges.index(up_to)) for i in range(len(edges))]


def test_a_request_without_a_token_has_no_decode_time() -> None:
    metrics = ServerMetrics(INFO, "m")
    metrics.timer().request_ended(EndedRequest(7, 0, [0], 0, None))
    assert value(metrics, "vllm:request_time_per_output_token_seconds_count") == 0
    assert value(metrics, "vllm:request_params_max_tokens_count") == 0
    assert value(metrics, "vllm:request_decode_time_seconds_count") == 0
    assert value(metrics, "vllm:e2e_request_latency_seconds_count") == 1


def test_processes_that_share_counts_tell_their_sums_and_take_over_from_the_dead() -> None:
    shared = SharedCounts.create(2, module.NUM_VALUES)
    shared.restarts[1] += 3

    def process(index: int) -> ServerMetrics:
        return ServerMetrics(INFO, "m", SharedCounts(shared.descriptor, 2, module.NUM_VALUES, index))

    first, second = process(0), process(1)
    first.timer().sequence_ended(FinishReason.STOP)
    second.timer().sequence_ended(FinishReason.STOP)
    second.timer().sequence_ended(FinishReason.LENGTH)
    del second
    third = process(1)
    third.timer().sequence_ended(FinishReason.LENGTH)
    for metrics in (first, third):
        assert value(metrics, "vllm:request_success_total", finished_reason="stop") == 2
        assert value(metrics, "vllm:request_success_total", finished_reason="length") == 2
        assert value(metrics, "vllm:request_success_total", finished_reason="abort") == 0
        assert value(metrics, "jaxinfer:restarts_total", process="api") == 3
