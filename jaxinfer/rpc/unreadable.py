"""A message that cannot be read is INVALID_ARGUMENT; gRPC itself would call it INTERNAL, and log a traceback."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from jaxinfer.rpc.status import abort
from jaxinfer.server.errors import ApiError


class _Unreadable:
    """Stands for a message that cannot be read."""


class UnreadableInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls whose message is no protobuf of its kind."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """The call's handler, behind a check of its message."""
        handler: Any = await continuation(handler_call_details)
        # There is no handler of a method that is not served.
        if not handler or handler.request_streaming or handler.request_deserializer is None:
            return handler  # pyright: ignore[reportReturnType]
        coders = {
            "request_deserializer": _lenient(handler.request_deserializer),
            "response_serializer": handler.response_serializer,
        }
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(_checked(handler.unary_stream), **coders)
        return grpc.unary_unary_rpc_method_handler(_checked(handler.unary_unary), **coders)


def _lenient(deserialise: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialise(data)
        except DecodeError:
            return _Unreadable()

    return read


def _checked(behaviour: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def answer(request: Any, call: grpc.aio.ServicerContext) -> Any:
        if isinstance(request, _Unreadable):
            message = "the message is not a valid protobuf of this method's request, or a string is not UTF-8"
            await abort(call, ApiError(400, message, code="invalid_message"))
        if not inspect.isasyncgenfunction(behaviour):
            return await behaviour(request, call)
        async for message in behaviour(request, call):
            await call.write(message)
        return None

    return answer
