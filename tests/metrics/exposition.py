"""Metrics of a server, read as Prometheus reads them."""

from prometheus_client.parser import text_string_to_metric_families

from jaxinfer.engine.stats.counters import EngineStats
from jaxinfer.engine.types import ModelInfo
from jaxinfer.metrics import ServerMetrics

INFO = ModelInfo("m", 64, 61, 4, 4, 40)


def value(metrics: ServerMetrics, name: str, stats: EngineStats | None = None, **labels: str) -> float:
    """A sample as Prometheus' own parser reads it. Series under vLLM's names have its number of the engine."""
    common = {"model_name": "m", "engine": "0"} if name.startswith("vllm:") else {"model_name": "m"}
    for family in text_string_to_metric_families(metrics.exposition(stats).decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels == {**common, **labels}:
                return sample.value
    raise KeyError(name)
