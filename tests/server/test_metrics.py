"""Metrics: vLLM's names, read by Prometheus' own parser."""

from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import Served


async def scrape(served: Served) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    async with served.session.get(served.url + "/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await response.text()
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name not in ("model_name", "engine")}
            if not sample.name.startswith("process_"):
                assert sample.labels["model_name"] == "fake"
                assert sample.labels.get("engine") == ("0" if sample.name.startswith("vllm:") else None)
            samples.setdefault(sample.name, {})[tuple(labels.items())] = sample.value
    return samples


NAMES = [
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:cache_config_info",
    "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_count", "vllm:inter_token_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_count", "vllm:request_prompt_tokens_sum",
    "vllm:request_generation_tokens_sum", "vllm:request_queue_time_seconds_count",
    "vllm:request_prefill_time_seconds_count", "vllm:request_decode_time_seconds_count",
    "vllm:prompt_tokens_cached_total", "jaxinfer:compiles_after_ready_total",
]  # fmt: skip


DASHBOARDS = [
    "vllm:e2e_request_latency_seconds_bucket", "vllm:e2e_request_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_sum", "vllm:generation_tokens_total", "vllm:inter_token_latency_seconds_bucket",
    "vllm:inter_token_latency_seconds_count", "vllm:inter_token_latency_seconds_sum",
    "vllm:iteration_tokens_total_count", "vllm:kv_cache_usage_perc", "vllm:num_requests_running",
    "vllm:num_requests_waiting", "vllm:prompt_tokens_total", "vllm:request_decode_time_seconds_sum",
    "vllm:request_generation_tokens_bucket", "vllm:request_max_num_generation_tokens_sum",
    "vllm:request_prefill_time_seconds_sum", "vllm:request_prompt_tokens_bucket", "vllm:request_queue_time_seconds_sum",
    "vllm:request_success_total", "vllm:request_time_per_output_token_seconds_bucket",
    "vllm:request_time_per_output_token_seconds_count", "vllm:request_time_per_output_token_seconds_sum",
    "vllm:time_to_first_token_seconds_bucket", "vllm:time_to_first_token_seconds_count",
    "vllm:time_to_first_token_seconds_sum",
]  # fmt: skip
"""All series that the panels of vLLM 0.33.0's three dashboards read (examples/observability there)."""
VLLM_TESTS = [
    "vllm:num_requests_waiting_by_reason", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total", "vllm:admission_rejections_total", "vllm:iteration_tokens_total_sum",
    "vllm:request_params_n_sum", "vllm:request_params_max_tokens_sum", "vllm:request_inference_time_seconds_sum",
    "vllm:request_num_preemptions_sum", "vllm:request_prefill_kv_computed_tokens_sum",
    "vllm:prompt_tokens_by_source_total", "process_resident_memory_bytes", "process_cpu_seconds_total",
    "process_open_fds",
]  # fmt: skip
"""What vLLM's test of its metrics looks for beside them, and what Prometheus' clients tell of a process."""


async def test_every_panel_of_vllms_dashboards_shows_data(serve) -> None:
    served: Served = await serve()
    for _ in range(2):
        await served.post("/v1/completions", {"prompt": [65, 66], "max_tokens": 3})
    samples = await scrape(served)
    assert set(DASHBOARDS) | set(VLLM_TESTS) <= set(samples)
    by_request = [name for name in DASHBOARDS if name.endswith(("_bucket", "_count")) and "iteration" not in name]
    assert [name for name in by_request if not any(samples[name].values())] == []


async def test_the_cache_in_labels(serve) -> None:
    ((labels, one),) = (await scrape(await serve()))["vllm:cache_config_info"].items()
    assert one == 1
    assert dict(labels) == {
        "block_size": "16", "cache_dtype": "auto", "num_gpu_blocks": "64", "kv_cache_size_tokens": "1008",
        "kv_cache_max_concurrency": "3.94",
    }  # fmt: skip


async def test_how_weights_are_held(serve) -> None:
    assert (await scrape(await serve()))["jaxinfer:weights_info"] == {(("dtype", "float32"), ("weights", "float32")): 1}


async def test_refused_requests_are_counted_by_the_limit_that_refused_them(serve) -> None:
    served: Served = await serve(max_open_requests=1, sse_keep_alive_interval=0.01)
    served.engine.max_waiting = 0
    assert (await served.post("/v1/completions", {"prompt": "a"})).status == 429
    served.engine.max_waiting = 10
    served.engine.gate.clear()
    stream = await served.client.completions.create(model="fake", prompt="a", stream=True)
    assert [(await served.post("/v1/completions", {"prompt": "a"})).status for _ in range(2)] == [429, 429]
    refused = (await scrape(served))["vllm:admission_rejections_total"]
    assert refused == {(("reason", "max_waiting"),): 1, (("reason", "max_open_requests"),): 2}
    await stream.close()


async def test_the_names_are_there_before_the_first_request(serve) -> None:
    samples = await scrape(await serve())
    assert set(NAMES) <= set(samples)


async def test_what_is_counted(serve) -> None:
    served: Served = await serve()
    await served.post("/v1/completions", {"prompt": [65, 66], "max_tokens": 3, "n": 2})
    await served.post("/v1/completions", {"prompt": [65], "max_tokens": 50})
    samples = await scrape(served)
    assert samples["vllm:request_success_total"][(("finished_reason", "length"),)] == 2
    assert samples["vllm:request_success_total"][(("finished_reason", "stop"),)] == 1
    assert samples["vllm:time_to_first_token_seconds_count"][()] == 2
    hello = len(served.engine.tokenizer.encode("hello world")) + 1
    assert samples["vllm:inter_token_latency_seconds_count"][()] == 2 * 2 + hello - 1
    assert samples["vllm:request_prompt_tokens_sum"][()] == 3
    assert samples["vllm:request_generation_tokens_sum"][()] == 6 + hello
    assert samples["vllm:e2e_request_latency_seconds_count"][()] == 2
    assert samples["vllm:request_queue_time_seconds_sum"][()] == 2 * 0.25
    assert samples["vllm:request_prefill_time_seconds_sum"][()] == 2 * 0.5
    assert samples["vllm:request_decode_time_seconds_count"][()] == 2


async def test_gauges_are_read_when_they_are_scraped(serve) -> None:
    served: Served = await serve(sse_keep_alive_interval=0.01)
    served.engine.gate.clear()
    stream = await served.client.completions.create(model="fake", prompt="a", stream=True)
    samples = await scrape(served)
    assert samples["vllm:num_requests_running"][()] == 1
    assert samples["vllm:kv_cache_usage_perc"][()] == 2 / 64
    await stream.close()


async def test_intervals_below_10_ms_are_told_apart(serve) -> None:
    samples = await scrape(await serve())
    edges = [float(labels[0][1]) for labels in samples["vllm:inter_token_latency_seconds_bucket"]]
    assert len([edge for edge in edges if edge < 0.01]) >= 4


async def test_a_dead_engine_still_has_metrics(serve) -> None:
    served: Served = await serve()
    served.engine.die()
    assert "vllm:request_success_total" in await scrape(served)
