"""The engine's statistics as series."""

from typing import Any

import pytest

from jaxinfer.engine.stats import step_timer
from jaxinfer.engine.stats.counters import STEP_TOKENS, EngineStats, statistics_of
from jaxinfer.engine.stats.hosts import HostReading
from jaxinfer.metrics import ServerMetrics
from tests.engine.flat_stats import stats_of
from tests.metrics.exposition import INFO, value

CASES = [
    ("jaxinfer:step_faults_total", {}, {"step_faults": 3}, 3),
    ("jaxinfer:requests_abandoned_total", {}, {"abandoned_requests": 2}, 2),
    ("vllm:prompt_tokens_cached_total", {}, {"prefix_queries": 20, "prefix_hits": 12}, 12),
    ("vllm:prompt_tokens_total", {}, {"prompt_tokens": 20}, 20),
    ("vllm:num_requests_waiting_by_reason", {"reason": "capacity"}, {"waiting_for_slots": 2, "waiting_for_step": 1}, 3),
    ("vllm:num_requests_waiting_by_reason", {"reason": "deferred"}, {"waiting_for_prefills": 2}, 2),
    ("jaxinfer:num_requests_waiting_by_reason", {"reason": "pages"}, {"waiting_for_blocks": 2}, 2),
    ("jaxinfer:engine_seconds_total", {"part": "wait"}, {"wait_seconds": 1.5}, 1.5),
    ("jaxinfer:engine_seconds_total", {"part": "constrain"}, {"constrain_seconds": 0.25}, 0.25),
    ("jaxinfer:grammars_total", {"result": "cached"}, {"grammars_cached": 5}, 5),
    ("jaxinfer:grammars_total", {"result": "compiled"}, {"grammars_compiled": 4}, 4),
    ("jaxinfer:grammars_total", {"result": "refused"}, {"grammars_refused": 2}, 2),
    ("jaxinfer:grammar_compile_seconds_total", {}, {"grammar_seconds": 1.25}, 1.25),
    ("jaxinfer:grammars_kept", {}, {"grammars_kept": 7}, 7),
    ("jaxinfer:grammars_kept_bytes", {}, {"grammar_bytes": 1 << 20}, 1 << 20),
    ("jaxinfer:mask_wait_seconds_total", {}, {"mask_wait_seconds": 0.75}, 0.75),
    ("jaxinfer:constraint_failures_total", {}, {"constraint_failures": 3}, 3),
    ("jaxinfer:forced_tokens_total", {}, {"forced_tokens": 11}, 11),
    ("jaxinfer:device_idle_seconds_total", {}, {"starved_seconds": 0.5}, 0.5),
    ("jaxinfer:step_in_flight_seconds_total", {}, {"in_flight_seconds": 0.5}, 0.5),
    ("jaxinfer:steps_by_kind_total", {"kind": "multi_step"}, {"multi_step_steps": 4}, 4),
    ("jaxinfer:computed_tokens_total", {"kind": "padding"}, {"padded_tokens": 5}, 5),
    ("jaxinfer:model_flops_total", {}, {"flops": 2**60}, 2**60),
    ("jaxinfer:model_bytes_total", {}, {"bytes": 2**50}, 2**50),
    ("jaxinfer:expert_tokens_total", {"expert": "1"}, {"expert_tokens": (3, 5)}, 5),
    ("jaxinfer:expert_imbalance", {"layer": "0"}, {"expert_imbalance": (1.25, 2.0)}, 1.25),
    ("jaxinfer:expert_device_imbalance", {"layer": "1"}, {"expert_device_imbalance": (1.25, 2.0)}, 2.0),
    ("jaxinfer:expert_placements_total", {}, {"expert_placements": 3}, 3),
    ("jaxinfer:device_memory_bytes", {"kind": "peak", "device": "1"}, {"memory_peak": (5, 7)}, 7),
    ("jaxinfer:host_devices", {"host": "1"}, {"host_devices": (8, 4)}, 4),
    ("jaxinfer:host_calls_behind", {"host": "2"}, {"host_calls_behind": (0, 3, 5)}, 5),
    ("jaxinfer:host_step_skew_seconds", {"host": "1"}, {"host_step_skew": (0.0, 0.25)}, 0.25),
    ("jaxinfer:host_heartbeat_age_seconds", {"host": "1"}, {"host_heartbeat_age": (0.0, 1.5)}, 1.5),
    ("vllm:iteration_tokens_total_bucket", {"le": "8.0"}, {"step_tokens": (1, 2, *[0] * (len(STEP_TOKENS) - 2), 4)}, 3),
    ("vllm:iteration_tokens_total_bucket", {"le": "+Inf"}, {"step_tokens": (1, *[0] * (len(STEP_TOKENS) - 1), 4)}, 5),
    ("vllm:iteration_tokens_total_sum", {}, {"iteration_tokens": 42, "prefill_tokens": 9}, 42),
    ("vllm:prompt_tokens_by_source_total", {"source": "local_cache_hit"}, {"admitted_tokens": 20, "prefix_hits": 8}, 8),
    ("vllm:prompt_tokens_by_source_total", {"source": "local_compute"}, {"admitted_tokens": 20, "prefix_hits": 8}, 12),
]  # fmt: skip


@pytest.mark.parametrize(("name", "labels", "stats", "expected"), CASES)
def test_a_series(name: str, labels: dict[str, str], stats: dict[str, Any], expected: float) -> None:
    assert value(ServerMetrics(INFO, "m"), name, stats_of(**stats), **labels) == expected


def test_parts_of_the_engines_time_are_all_of_it() -> None:
    """Each part that the timer has is a series; their sum is the time since the start."""
    seconds = {one.name: 2.0**i for i, one in enumerate(statistics_of(EngineStats())) if one.name.endswith("_seconds")}
    stats = stats_of(**seconds)
    parts = [name.lower() for name, part in vars(step_timer).items() if name.isupper() and isinstance(part, int)]
    told = sum(value(ServerMetrics(INFO, "m"), "jaxinfer:engine_seconds_total", stats, part=part) for part in parts)
    assert len(parts) == 7
    assert told == sum(seconds[f"{part}_seconds"] for part in parts)


@pytest.mark.parametrize(
    ("shards", "blocks", "tokens", "requests"),
    [(1, 41, 160, "2.50"), (2, 82, 320, "4.00"), (4, 100, 384, "4.00")],
)
def test_a_request_fits_into_one_shard_and_each_has_a_scratch_block(
    shards: int, blocks: int, tokens: int, requests: str
) -> None:
    metrics = ServerMetrics(INFO._replace(shards=shards, num_blocks=blocks), "m")
    sizes = {"num_gpu_blocks": str(blocks), "kv_cache_size_tokens": str(tokens), "kv_cache_max_concurrency": requests}
    labels = {"block_size": "4", "cache_dtype": "auto", **sizes}
    assert value(metrics, "vllm:cache_config_info", EngineStats(), **labels) == 1


def test_names_of_statistics_are_unique() -> None:
    names = [one.name for one in statistics_of(EngineStats(hosts=(HostReading(2),)))]
    assert len(names) == len(set(names)) > 60


def test_a_model_without_experts_has_no_series_of_them() -> None:
    with pytest.raises(KeyError):
        value(ServerMetrics(INFO, "m"), "jaxinfer:expert_tokens_total", EngineStats(), expert="0")


def test_the_engine_is_ready_where_it_has_statistics() -> None:
    metrics = ServerMetrics(INFO, "m")
    assert value(metrics, "jaxinfer:engine_ready", EngineStats()) == 1
    assert value(metrics, "jaxinfer:engine_ready") == 0
    with pytest.raises(KeyError):
        value(metrics, "vllm:num_requests_running")
