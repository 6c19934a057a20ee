"""The API key, asked of every call that uses the model."""

from collections.abc import Awaitable, Callable, Collection, Iterable
from contextvars import ContextVar

import grpc

from jaxinfer.rpc.status import abort
from jaxinfer.serving.api_keys import KeyCheck, wrong_key

_OPEN = ("/grpc.health.", "/grpc.reflection.")

_ACCEPTED: ContextVar[str] = ContextVar("accepted API key", default="")


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
        accepted = self._keys.accepted(_authorization(handler_call_details.invocation_metadata))
        if accepted is None:
            # NOTE: a handler of streams, which gRPC asks before it reads a message.
            return grpc.stream_unary_rpc_method_handler(_refuse)
        _ACCEPTED.set(accepted)  # a call's interceptors and its handler run in one task
        return await continuation(handler_call_details)


def is_open(method: str) -> bool:
    """Whether a method, `/SERVICE/NAME`, needs no key."""
    return method.startswith(_OPEN)


def accepted_key() -> str:
    """The key by which this call came in; `` where none is asked for."""
    return _ACCEPTED.get()


def _authorization(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """What a call brings as its key, `Bearer KEY`; empty where it brings none."""
    return str(dict(metadata or ()).get("authorization", ""))


async def _refuse(_: object, call: grpc.aio.ServicerContext) -> None:
    await abort(call, wrong_key())
