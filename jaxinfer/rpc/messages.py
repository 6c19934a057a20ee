"""MessageInterceptor: reads the messages of calls, within limits of size, time and memory.

To gRPC's server every call is a stream of messages: those of other kinds it would read as a whole, however long they
take, before a handler is asked. A message that cannot be read is INVALID_ARGUMENT; gRPC itself would call it INTERNAL,
and log a traceback.
"""

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError

from jaxinfer.rpc.access import is_open
from jaxinfer.rpc.fields import check_fields, invalid_message
from jaxinfer.rpc.large_messages import LargeMessages
from jaxinfer.rpc.reading_places import ReadingPlaces
from jaxinfer.rpc.status import answering
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.errors import ErrorKind, RequestError

SHORT_BYTES = 64 * 1024
"""Longest message of methods that take neither texts nor token ids."""

_LONG = ("Generate", "Tokenize", "Detokenize")
_STRICT = "/jaxinfer.v1."
_OPEN_SHARE = 4


class MessageInterceptor(grpc.aio.ServerInterceptor):
    """Reads and checks messages. Half of `max_pending_body_bytes` is for those that are coming, half for large ones."""

    def __init__(self, options: ServerConfig):
        self._longest = options.max_body_bytes
        room = options.max_pending_body_bytes // 2
        places, seconds = room // self._longest, options.client_body_timeout
        # Who brings no key must not take the places of those who do.
        for_open = max(1, places // _OPEN_SHARE)
        self._open = ReadingPlaces(for_open, seconds)
        self._guarded = ReadingPlaces(max(1, places - for_open), seconds)
        self._large = LargeMessages(room)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """The call's handler, behind a reader of its messages."""
        handler: Any = await continuation(handler_call_details)
        if not handler:  # the method is not served
            return handler  # pyright: ignore[reportReturnType]
        reader = self._reader(handler_call_details.method, handler.request_deserializer)
        kept = {"response_serializer": handler.response_serializer}
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(_streaming(handler.stream_stream, reader), **kept)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._whole(handler.unary_stream, reader), **kept)
        return grpc.stream_unary_rpc_method_handler(self._whole(handler.unary_unary, reader), **kept)

    def _reader(self, method: str, deserialise: Callable[[bytes], Any]) -> "_Reader":
        long = method.rpartition("/")[2] in _LONG and not is_open(method)
        places = self._open if is_open(method) else self._guarded
        return _Reader(method, places, self._longest if long else min(SHORT_BYTES, self._longest), deserialise)

    def _whole(self, behaviour: Callable[..., Any], reader: "_Reader") -> Callable[..., Awaitable[Any]]:
        """A handler of one message. What the behaviour raises ends the call with its status."""

        async def answer(_: object, call: grpc.aio.ServicerContext) -> Any:
            async with answering(call):
                data = await reader.read(call)
                if data is None:
                    raise invalid_message()
                with self._large.holding(len(data)):
                    # NOTE: the message must be nobody's but the behaviour's, which drops it.
                    made, data = [reader.parse(data)], None
                    if not inspect.isasyncgenfunction(behaviour):
                        return await behaviour(made.pop(), call)
                    async for message in behaviour(made.pop(), call):
                        await call.write(message)
            return None

        return answer


class _Reader:
    """Reads one method's messages."""

    def __init__(self, method: str, places: ReadingPlaces, longest: int, deserialise: Callable[[bytes], Any]):
        self._method = method
        self._places = places
        self._longest = longest
        self._deserialise = deserialise

    async def read(self, call: grpc.aio.ServicerContext) -> bytes | None:
        """The next message's bytes; None where there is none. Raises RequestError."""
        async with self._places.place():
            data: Any = await call.read()
        if not isinstance(data, bytes):  # gRPC's mark of the end
            return None
        if len(data) > self._longest:
            message = f"the message has {len(data)} bytes; at most {self._longest} are allowed here"
            raise RequestError(message, kind=ErrorKind.TOO_LARGE, code="body_too_large")
        return data

    def parse(self, data: bytes) -> Any:
        """The message. Raises RequestError."""
        if self._method.startswith(_STRICT) or self._method.endswith("/Generate"):
            check_fields(data, _request_kind(self._method))
        try:
            return self._deserialise(data)
        except DecodeError:
            raise invalid_message() from None


def _streaming(behaviour: Callable[..., Any], reader: _Reader) -> Callable[..., AsyncIterator[Any]]:
    async def messages(call: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        while (data := await reader.read(call)) is not None:
            yield reader.parse(data)

    async def answer(_: object, call: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        async with answering(call):
            async for message in behaviour(messages(call), call):
                yield message

    return answer


@functools.cache
def _request_kind(method: str) -> Any:
    service, _, name = method.removeprefix("/").partition("/")
    return descriptor_pool.Default().FindMethodByName(f"{service}.{name}").input_type
