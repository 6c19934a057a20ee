"""The API key, asked of every call that uses the model."""

from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from typing import Any

import grpc

from jaxinfer.rpc.status import abort
from jaxinfer.serving.api_keys import KeyCheck, wrong_key

_OPEN = ("/grpc.health.", "/grpc.reflection.")

ACCEPTED_KEY: ContextVar[str] = ContextVar("accepted API key", default="")
"""The key by which this call came in; `` where none is asked for."""


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a key, but for health and reflection. api_keys: none let everybody in."""

    def __init__(self, api_keys: Collection[str]):
        self._keys = KeyCheck(api_keys)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """The call's handler, or one that refuses."""
        if is_open(handler_call_details.method):
            return await continuation(handler_call_details)
        metadata: dict[str, Any] = dict(handler_call_details.invocation_metadata or ())
        accepted = self._keys.accepted(str(metadata.get("authorization", "")))
        if accepted is None:
            # NOTE: a handler of streams, which gRPC asks before it reads a message.
            return grpc.stream_unary_rpc_method_handler(_refuse)
        ACCEPTED_KEY.set(accepted)  # a call's interceptors and its handler run in one task
        return await continuation(handler_call_details)


def is_open(method: str) -> bool:
    """Return whether a method, `/SERVICE/NAME`, needs no key."""
    return method.startswith(_OPEN)


async def _refuse(_: object, call: grpc.aio.ServicerContext) -> None:
    await abort(call, wrong_key())
