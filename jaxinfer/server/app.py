"""make_app: the server as an aiohttp application."""

import asyncio

from aiohttp import web

from jaxinfer.engine.client.base import EngineClient
from jaxinfer.metrics import ServerMetrics, SharedCounts
from jaxinfer.server import endpoints, health, introspection, responses
from jaxinfer.server.auth import make_auth_middleware
from jaxinfer.server.body_budget import BodyBudget
from jaxinfer.server.context import CONTEXT, IGNORED_FIELDS, ensured_id, told_id
from jaxinfer.server.cors import add_cors_headers, make_cors_middleware
from jaxinfer.server.errors import SERVER, Handler, error_middleware
from jaxinfer.server.host_check import make_host_middleware
from jaxinfer.server.incoming import ask_later, make_admission_middleware
from jaxinfer.server.messages_errors import is_messages
from jaxinfer.serving.admission import RequestLimit
from jaxinfer.serving.bodies.unknown_fields import HEADER as IGNORED_HEADER
from jaxinfer.serving.bodies.unknown_fields import UnknownFields, header_value
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.context import Context
from jaxinfer.serving.requests.conversation import answer_form
from jaxinfer.serving.tracing import Tracing
from jaxinfer.serving.workers.pool import Workers
from jaxinfer.text import TextProcessor


def _post(path: str, handler: Handler) -> web.RouteDef:
    return web.post(path, handler, expect_handler=ask_later)


def make_app(
    client: EngineClient, text: TextProcessor, options: ServerConfig, shared: SharedCounts | None = None
) -> web.Application:
    """Everything under one application. Run it with `handler_cancellation`, as `run.serve` does.

    shared: where requests are counted together with other processes of this server.
    """
    name = (*options.served_model_name, client.info.name)[0]
    metrics = ServerMetrics(client.info, name, shared)
    admission = RequestLimit(options.max_open_requests, lambda: metrics.rejected("max_open_requests"))
    budget = BodyBudget(options.max_pending_body_bytes, shared=len(options.api_keys) > 1)
    workers = Workers(text, options, name)
    app = web.Application(
        middlewares=[
            error_middleware,
            make_host_middleware(options),
            make_cors_middleware(options),
            make_auth_middleware(options.api_keys),
            make_admission_middleware(admission, options, budget),
        ],
    )

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = SERVER
        add_cors_headers(request, response, options)
        if is_messages(request.path):
            response.headers["request-id"] = ensured_id(request)
        name = told_id(request)
        if name is not None:
            response.headers["X-Request-Id"] = name
        if IGNORED_FIELDS in request:
            response.headers[IGNORED_HEADER] = header_value(request[IGNORED_FIELDS])

    app.on_response_prepare.append(add_headers)
    form = answer_form(options, text.chat_template.form)
    tracing = None if options.otlp_traces_endpoint is None else Tracing(options.otlp_traces_endpoint, name)
    if tracing is not None:
        app.on_cleanup.append(lambda app: asyncio.to_thread(tracing.flush))
    unknown, fingerprint = UnknownFields(options.unknown_fields), introspection.fingerprint_of(client.info)
    app[CONTEXT] = Context(
        client, text, options, name, metrics, form, admission, unknown, fingerprint, workers, tracing
    )
    app[responses.STORE] = responses.make_store(options)
    app.on_cleanup.append(lambda app: asyncio.to_thread(workers.close))
    app.add_routes(
        [
            web.get("/", health.index),
            _post("/v1/completions", endpoints.completions),
            _post("/v1/chat/completions", endpoints.chat_completions),
            _post("/v1/fim/completions", endpoints.fim_completions),
            _post("/v1/messages", endpoints.messages),
            _post("/v1/messages/count_tokens", endpoints.count_tokens),
            _post("/v1/responses", responses.create),
            web.get("/v1/responses/{id}", responses.retrieve),
            web.delete("/v1/responses/{id}", responses.delete),
            _post("/v1/responses/{id}/cancel", responses.cancel),
            web.get("/v1/responses/{id}/input_items", responses.input_items),
            _post("/invocations", endpoints.invocations),
            _post("/tokenize", endpoints.tokenize),
            _post("/detokenize", endpoints.detokenize),
            web.get("/v1/models", health.models),
            web.get("/v1/models/{name:.+}", health.model),
            web.get("/v1/loads", introspection.loads),
            web.get("/load", introspection.load),
            web.get("/tokenizer_info", introspection.tokenizer_info),
            web.get("/server_info", introspection.server_info),
            web.get("/ping", health.ready),
            web.get("/healthz", health.alive),
            web.get("/readyz", health.ready),
            web.get("/health", health.ready),
            web.get("/version", health.version),
            web.get("/metrics", health.metrics),
        ]
    )
    return app
