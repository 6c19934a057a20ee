"""The API key: asked of every request that uses the model, where one is set."""

from collections.abc import Collection

from aiohttp import web
from aiohttp.typedefs import Middleware

from jaxinfer.server.context import API_KEY
from jaxinfer.server.errors import Handler, error_response
from jaxinfer.serving.api_keys import KeyCheck, wrong_key

_GUARDED = ("/v1", "/tokenize", "/detokenize", "/tokenizer_info", "/server_info", "/invocations")


def make_auth_middleware(api_keys: Collection[str]) -> Middleware:
    """Answers 401 to a request that uses the model and brings none of `api_keys`; with none of them all come in."""
    keys = KeyCheck(api_keys)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", ""), request.headers.get("X-Api-Key", "")
        accepted = keys.accepted(*given)
        if accepted is not None:
            request[API_KEY] = accepted
        elif request.path.startswith(_GUARDED):
            return error_response(wrong_key(), request)
        return await handler(request)

    return check
