"""The API key, asked of every call that uses the model."""

from collections.abc import Awaitable, Callable, Collection, Iterable

import grpc

from jaxinfer.rpc.status import abort
from jaxinfer.server.auth import WRONG_KEY, KeyCheck
from jaxinfer.server.errors import ApiError

_OPEN = ("/grpc.health.", "/grpc.reflection.")


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
        said = authorization(handler_call_details.invocation_metadata)
        if handler_call_details.method.startswith(_OPEN) or self._keys.allows(said):
            return await continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


def authorization(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """What a call brings as its key, `Bearer KEY`; empty where it brings none."""
    return str(dict(metadata or ()).get("authorization", ""))


async def _refuse(request: bytes, call: grpc.aio.ServicerContext) -> None:
    await abort(call, ApiError(401, WRONG_KEY, code="invalid_api_key"))
