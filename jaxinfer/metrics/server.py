"""ServerMetrics: all series of one server."""

from prometheus_client import CollectorRegistry, generate_latest

from jaxinfer.engine.types import EngineStats, ModelInfo
from jaxinfer.metrics.engine import EngineCollector
from jaxinfer.metrics.requests import RequestTimer, make_request_metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerMetrics:
    """Series of the requests that a server has answered, and of the engine behind it."""

    def __init__(self, info: ModelInfo, model_name: str):
        self._info = info
        self._model_name = model_name
        self._registry = CollectorRegistry()
        self._requests = make_request_metrics(self._registry, model_name)

    def timer(self) -> RequestTimer:
        """Starts to measure a request."""
        return RequestTimer(self._requests)

    def exposition(self, stats: EngineStats | None) -> bytes:
        """Everything in Prometheus' text form; milliseconds of work, so call it in a thread.

        stats: the engine's newest reading; None leaves its series out.
        """
        text = generate_latest(self._registry)
        if stats is None:
            return text
        engine = CollectorRegistry()
        engine.register(EngineCollector(stats, self._info, self._model_name))
        return generate_latest(engine) + text
