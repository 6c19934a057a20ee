"""The API key, asked of every call that uses the model."""

from collections.abc import Awaitable, Callable

import grpc

from jaxinfer.rpc.status import abort
from jaxinfer.server.auth import WRONG_KEY, KeyCheck
from jaxinfer.server.errors import ApiError

_OPEN = ("/grpc.health.", "/grpc.reflection.")


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without the key, but for health and reflection. api_key: None lets everybody in."""

    def __init__(self, api_key: str | None):
        self._keys = KeyCheck(api_key)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """The call's handler, or one that refuses."""
        said = dict(handler_call_details.invocation_metadata or ()).get("authorization", "")
        if handler_call_details.method.startswith(_OPEN) or self._keys.allows(str(said)):
            return await continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(request: bytes, call: grpc.aio.ServicerContext) -> None:
    await abort(call, ApiError(401, WRONG_KEY, code="invalid_api_key"))
