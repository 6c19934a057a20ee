"""grpc.health.v1.Health, which follows the engine."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jaxinfer.engine.client.base import EngineClient

_WATCH_SECONDS = 0.25
_MOST_WATCHERS = 100

_Response = health_pb2.HealthCheckResponse


class HealthService(health_pb2_grpc.HealthServicer):
    """SERVING while requests can be served, for each of `services` and for the server, whose name is empty.

    Ours and not the one of grpcio-health-checking, whose watchers would keep a server from ending.
    """

    def __init__(self, client: EngineClient, services: Sequence[str]):
        self._client = client
        self._services = ("", *services)
        self._watchers = 0
        self.ending = False
        """Set when the server takes no new requests."""

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """NOT_FOUND for a service that is not here."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{request.service} is not served here")
        return _Response(status=self._status())

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status now and whenever it changes, until the server ends; RESOURCE_EXHAUSTED where too many watch."""
        if self._watchers >= _MOST_WATCHERS:
            # Nobody asks watchers for a key: they must not take all calls that the server can hold.
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MOST_WATCHERS} watch already; use Check")
        self._watchers += 1
        try:
            async for response in self._changes(request):
                yield response
        finally:
            self._watchers -= 1

    async def _changes(self, request: health_pb2.HealthCheckRequest) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        known = request.service in self._services
        told = None
        while True:
            ending = self.ending
            status = self._status() if known else _Response.SERVICE_UNKNOWN
            if status != told:
                told = status
                yield _Response(status=status)
            if ending:
                return
            await asyncio.sleep(_WATCH_SECONDS)

    async def List(self, request: Message, context: grpc.aio.ServicerContext) -> None:
        """Refuse a call that belongs to newer versions of the protocol than we need."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "List: ask for one service, with Check")

    def _status(self) -> health_pb2.HealthCheckResponse.ServingStatus:
        return _Response.SERVING if self._client.ready and not self.ending else _Response.NOT_SERVING
