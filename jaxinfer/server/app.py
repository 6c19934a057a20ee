"""make_app: the server as an aiohttp application."""

from aiohttp import web

from jaxinfer.engine.client import EngineClient
from jaxinfer.metrics import ServerMetrics
from jaxinfer.server import health
from jaxinfer.server.auth import make_auth_middleware
from jaxinfer.server.chat import chat_completions
from jaxinfer.server.completions import completions
from jaxinfer.server.config import ServerConfig
from jaxinfer.server.context import CONTEXT, Context
from jaxinfer.server.errors import error_middleware
from jaxinfer.text import TextProcessor


def make_app(client: EngineClient, text: TextProcessor, options: ServerConfig) -> web.Application:
    """Everything under one application. Run it with `handler_cancellation`, as `run.serve` does."""
    name = options.served_model_name or client.info.name
    app = web.Application(
        middlewares=[error_middleware, make_auth_middleware(options.api_key)], client_max_size=options.max_body_bytes
    )
    app[CONTEXT] = Context(client, text, options, name, ServerMetrics(client.info, name))
    app.add_routes(
        [
            web.post("/v1/completions", completions),
            web.post("/v1/chat/completions", chat_completions),
            web.get("/v1/models", health.models),
            web.get("/v1/models/{name:.+}", health.model),
            web.get("/healthz", health.alive),
            web.get("/readyz", health.ready),
            web.get("/health", health.ready),
            web.get("/version", health.version),
            web.get("/metrics", health.metrics),
        ]
    )
    return app
