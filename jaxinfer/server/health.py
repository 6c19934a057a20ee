"""Everything that is not generation: the first page, health, models, version, metrics."""

import asyncio

from aiohttp import web

from jaxinfer.errors import EngineDeadError
from jaxinfer.metrics.server import CONTENT_TYPE
from jaxinfer.server.context import CONTEXT
from jaxinfer.serving.errors import unavailable
from jaxinfer.version import __version__


async def index(request: web.Request) -> web.Response:
    """GET /: what runs here, in one line for people."""
    routes = {route.resource.canonical: None for route in request.app.router.routes() if route.resource is not None}
    paths = ", ".join(path for path in routes if path != "/" and "{" not in path)
    return web.Response(text=f"jaxinfer {__version__} serves {request.app[CONTEXT].model_name}: {paths}\n")


async def alive(request: web.Request) -> web.Response:
    """GET /healthz: 200 while this process answers."""
    return web.json_response({"status": "ok"})


async def ready(request: web.Request) -> web.Response:
    """GET /readyz and /health: 200 while requests can be served, else 503."""
    if not request.app[CONTEXT].client.ready:
        raise unavailable("the engine is not ready")
    return web.json_response({"status": "ready"})


async def models(request: web.Request) -> web.Response:
    """GET /v1/models: the one model that is served, under each of its names."""
    context = request.app[CONTEXT]
    names = context.options.served_model_name or (context.model_name,)
    return web.json_response({"object": "list", "data": [_model(request, name) for name in names]})


async def model(request: web.Request) -> web.Response:
    """GET /v1/models/{name}."""
    context, name = request.app[CONTEXT], request.match_info["name"]
    context.side.check_model(name)
    return web.json_response(_model(request, name if name in context.options.served_model_name else context.model_name))


def _model(request: web.Request, name: str) -> dict[str, object]:
    context = request.app[CONTEXT]
    return {
        "id": name,
        "object": "model",
        "created": context.started,
        "owned_by": "jaxinfer",
        "root": context.client.info.name,
        "parent": None,
        "max_model_len": context.client.info.max_model_len,
    }


async def version(request: web.Request) -> web.Response:
    """GET /version."""
    return web.json_response({"version": __version__})


async def metrics(request: web.Request) -> web.Response:
    """GET /metrics: Prometheus' text form."""
    context = request.app[CONTEXT]
    try:
        stats = await context.client.read_stats()
    except EngineDeadError:
        stats = None
    text = await asyncio.to_thread(context.metrics.exposition, stats)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})
