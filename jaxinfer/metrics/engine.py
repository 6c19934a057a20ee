"""The engine's gauges and totals as Prometheus families, made from one reading of its statistics."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jaxinfer.engine.types import EngineStats, ModelInfo

_GAUGES = (
    ("vllm:num_requests_running", "Requests that hold a slot.", "running"),
    ("vllm:num_requests_waiting", "Requests that wait for a slot.", "waiting"),
)
_COUNTERS = (
    ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_queries"),
    ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hits"),
    ("vllm:prompt_tokens_cached", "Prompt tokens whose KV was not computed but found.", "prefix_hits"),
    ("vllm:num_preemptions", "Requests whose pages were taken away to be computed again.", "preemptions"),
    ("vllm:prompt_tokens", "Prompt tokens of requests that were started.", "prompt_tokens"),
    ("vllm:generation_tokens", "Tokens that were generated.", "generation_tokens"),
    ("jaxinfer:steps", "Steps that the engine ran.", "steps"),
    ("jaxinfer:compiles_after_ready", "Programs compiled after readiness; anything but 0 is a defect.",
     "compiles_after_ready"),
    ("jaxinfer:step_faults", "Steps that failed; their requests were tried again, or ended with an error.",
     "step_faults"),
)  # fmt: skip


class EngineCollector(Collector):
    """One reading of an engine's statistics, labelled with the model's name."""

    def __init__(self, stats: EngineStats, info: ModelInfo, model_name: str):
        self._stats = stats
        self._info = info
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        """The families, in the order of the tables above."""
        for name, text, field in _GAUGES:
            yield self._gauge(name, text, getattr(self._stats, field))
        used, total = self._stats.kv_pages_used, self._stats.kv_pages_total
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV pages in use, 0 to 1.", used / max(total, 1))
        for name, text, field in _COUNTERS:
            family = CounterMetricFamily(name, text, labels=["model_name"])
            family.add_metric([self._model_name], getattr(self._stats, field))
            yield family
        config = GaugeMetricFamily(
            "vllm:cache_config_info", "KV cache in labels; 1.", labels=["model_name", "block_size", "num_gpu_blocks"]
        )
        config.add_metric([self._model_name, str(self._info.block_size), str(self._info.num_blocks)], 1)
        yield config
        attention = GaugeMetricFamily(
            "jaxinfer:attention_backend_info", "Paged attention's backend; 1.", labels=["model_name", "backend"]
        )
        attention.add_metric([self._model_name, self._info.attention_backend], 1)
        yield attention

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family
