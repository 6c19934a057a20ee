"""GrpcServer: the public services of an API process, on one port."""

import asyncio
import contextlib
import importlib.util
import logging
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from jaxinfer.errors import ParameterError
from jaxinfer.rpc import jaxinfer_pb2, jaxinfer_pb2_grpc
from jaxinfer.rpc.access import KeyInterceptor
from jaxinfer.rpc.calls import OpenCalls
from jaxinfer.rpc.health import HealthService
from jaxinfer.rpc.messages import MessageInterceptor
from jaxinfer.rpc.service import JaxinferService
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.context import Context

log = logging.getLogger(__name__)

SERVICE = jaxinfer_pb2.DESCRIPTOR.services_by_name["Jaxinfer"].full_name
HEALTH = "grpc.health.v1.Health"

_OTHER_CALLS = 1000  # health, watched by many, and reflection, beside the requests that are let in
_LAST_WORDS_SECONDS = 0.5
_UNREAD_BYTES = 64 * 1024


class GrpcServer:
    """jaxinfer.v1.Jaxinfer, health and reflection, and VllmEngine where smg-grpc-proto is installed."""

    def __init__(self) -> None:
        self.address = ""
        """HOST:PORT, once it has started."""
        self.services: list[str] = []
        """Full names of what is served, but for reflection."""
        self._server: grpc.aio.Server | None = None
        self._health: HealthService | None = None
        self._calls: OpenCalls | None = None

    async def start(self, context: Context) -> None:
        """Listens at the settings' host and `grpc_port`. Raises ParameterError where it cannot."""
        options = context.options
        self._calls = OpenCalls(context.admission)
        server = self._server = grpc.aio.server(
            interceptors=[KeyInterceptor(options.api_keys), MessageInterceptor(options)],
            options=_channel_options(options),
            maximum_concurrent_rpcs=options.max_open_requests + _OTHER_CALLS,
        )
        jaxinfer_pb2_grpc.add_JaxinferServicer_to_server(JaxinferService(context, self._calls), server)
        self.services = [SERVICE, *_add_vllm_engine(context, self._calls, server)]
        self._health = HealthService(context.client, self.services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        self.services.append(HEALTH)
        reflection.enable_server_reflection([*self.services, reflection.SERVICE_NAME], server)
        self.address = _listen(server, options)
        await server.start()

    async def stop(self, seconds: float) -> None:
        """Takes no new calls, and lets Generate calls go on for so long; watchers are told and let go."""
        if self._server is None or self._health is None or self._calls is None:
            return
        self._health.ending = True
        stopping = asyncio.create_task(self._server.stop(seconds))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._calls.wait_idle(), seconds)
        await self._server.stop(_LAST_WORDS_SECONDS)
        await stopping


def _listen(server: grpc.aio.Server, options: ServerConfig) -> str:
    host = f"[{options.host}]" if ":" in options.host else options.host
    try:
        port = server.add_insecure_port(f"{host}:{options.grpc_port}")
    except RuntimeError as error:
        raise ParameterError("grpc_port", f"cannot listen on {host}:{options.grpc_port}: {error}") from None
    return f"{host}:{port}"


def _channel_options(options: ServerConfig) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", options.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", options.max_header_bytes),
        ("grpc.absolute_max_metadata_size", options.max_header_bytes),
        # A message that nobody reads yet takes no more than this; one that is read comes without such a limit.
        ("grpc.http2.lookahead_bytes", _UNREAD_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.server_handshake_timeout_ms", int(1000 * options.client_header_timeout)),
        # API processes share the port; who starts the server has looked whether it is free.
        ("grpc.so_reuseport", 1),
        # A client whose host vanishes without a word frees its requests.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Gateways ask over idle connections whether we live; by default gRPC hangs up on who asks that often.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]


def _add_vllm_engine(context: Context, calls: OpenCalls, server: grpc.aio.Server) -> list[str]:
    if importlib.util.find_spec("smg_grpc_proto") is None:
        return []
    try:
        from jaxinfer.rpc.vllm_engine import add_vllm_engine
    except Exception as error:  # stubs say so where grpcio or protobuf are older than theirs
        log.warning("VllmEngine is not served: smg-grpc-proto does not work here: %s", error)
        return []
    return [add_vllm_engine(context, calls, server)]
