"""Metrics under vLLM's names, in Prometheus' text form. No jax."""

from jaxinfer.metrics.counts import SharedCounts
from jaxinfer.metrics.requests import EndedRequest, RequestTimer
from jaxinfer.metrics.server import ServerMetrics

__all__ = ["EndedRequest", "RequestTimer", "ServerMetrics", "SharedCounts"]
