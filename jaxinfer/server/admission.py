"""The middleware that reads a request's body and then takes a place for it."""

from aiohttp import web
from aiohttp.typedefs import Middleware

from jaxinfer.server.body_budget import BodyBudget
from jaxinfer.server.errors import Handler
from jaxinfer.server.incoming import INCOMING, read_incoming
from jaxinfer.serving.admission import Admission
from jaxinfer.serving.config import ServerConfig


def make_admission_middleware(admission: Admission, options: ServerConfig, budget: BodyBudget) -> Middleware:
    """A place for every POST whose body has come. Reading, health and metrics are never refused."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "POST" or request.match_info.http_exception is not None:
            return await handler(request)
        # NOTE: a client that is slow to send takes no place. Where there is none its body is not waited for, either.
        admission.check()
        incoming = request[INCOMING] = await read_incoming(request, options, budget)
        try:
            with admission.place():
                return await handler(request)
        finally:
            incoming.forget()

    return check
