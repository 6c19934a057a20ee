"""ServerMetrics: all series of one server."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jaxinfer.engine.stats.counters import EngineStats
from jaxinfer.engine.types import ModelInfo
from jaxinfer.metrics.counts import Restarts, SharedCounts, private_counts
from jaxinfer.metrics.engine import EngineFamilies
from jaxinfer.metrics.requests import NUM_VALUES, RequestMetrics, RequestTimer, request_families

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerMetrics:
    """Series of the requests that a server has answered, and of the engine behind it.

    shared: where it counts together with others, and whose sums it tells; by default it is the only process.
    """

    def __init__(self, info: ModelInfo, model_name: str, shared: SharedCounts | None = None):
        self._info = info
        self._model_name = model_name
        self._shared = shared
        self._values = private_counts(NUM_VALUES) if shared is None else shared.own
        self._requests = RequestMetrics(self._values)

    def timer(self) -> RequestTimer:
        """Starts to measure a request."""
        return RequestTimer(self._requests)

    def rejected(self, reason: str) -> None:
        """Counts a request that was refused because of a limit, one of REJECTION_REASONS."""
        self._requests.rejected(reason)

    def exposition(self, stats: EngineStats | None) -> bytes:
        """Everything in Prometheus' text form; milliseconds of work, so call it in a thread.

        stats: the engine's newest reading; None leaves its series out.
        """
        registry = CollectorRegistry()
        registry.register(_Families(list(self._families(stats))))
        ProcessCollector(registry=registry)
        return generate_latest(registry)

    def _families(self, stats: EngineStats | None) -> Iterator[Metric]:
        ready = GaugeMetricFamily("jaxinfer:engine_ready", "1 while the engine can be used.", labels=["model_name"])
        ready.add_metric([self._model_name], stats is not None)
        yield ready
        if stats is not None:
            yield from EngineFamilies(stats, self._info, self._model_name).collect()
        values = self._values if self._shared is None else self._shared.total()
        yield from request_families(values.tolist(), self._model_name)
        restarts = Restarts() if self._shared is None else Restarts(*self._shared.restarts)
        family = CounterMetricFamily(
            "jaxinfer:restarts", "Processes that died and were started again.", labels=["model_name", "process"]
        )
        for process, count in restarts._asdict().items():
            family.add_metric([self._model_name, process], count)
        yield family


class _Families(Collector):
    """Collector of families that are known already."""

    def __init__(self, families: list[Metric]):
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
