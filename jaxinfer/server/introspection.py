"""Information on the server for gateways and operators: the tokenizer, the load, the settings that matter."""

import asyncio
import hashlib
import platform
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from aiohttp import web

from jaxinfer.engine.stats.counters import EngineStats
from jaxinfer.engine.types import ModelInfo
from jaxinfer.server.context import CONTEXT
from jaxinfer.serving.context import Context
from jaxinfer.serving.load import scheduler_load
from jaxinfer.version import __version__

# By name, so that a later setting that holds an address or a secret is not among them.
SHOWN_SETTINGS = (
    "served_model_name", "api_workers", "unknown_fields", "tool_call_parser", "reasoning_parser", "max_body_bytes",
    "max_pending_body_bytes", "body_workers", "client_header_timeout", "client_body_timeout", "keepalive_timeout",
    "sse_keep_alive_interval", "default_deadline", "body_queue_timeout",
    "max_header_bytes", "max_prompt_chars", "max_prompts", "max_choices", "max_logprob_entries", "max_open_requests",
    "max_stored_responses", "max_stored_response_bytes",
    "max_restarts", "drain_seconds", "heartbeat_seconds", "control_tokens_in_content",
    "enable_force_include_usage", "return_tokens_as_token_ids", "share_cache_across_keys",
)  # fmt: skip

_PACKAGES = ("jax", "jaxlib", "flax", "tokenizers", "aiohttp", "grpcio", "numpy")


async def tokenizer_info(request: web.Request) -> web.Response:
    """GET /tokenizer_info, vLLM's: tokenizer_config.json, with the chat template in use."""
    text = request.app[CONTEXT].text
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **text.tokenizer.config}
    if text.chat_template.exists:
        config["chat_template"] = text.chat_template.source
    return web.json_response(config)


async def load(request: web.Request) -> web.Response:
    """GET /load, vLLM's: requests under way in the whole server."""
    stats = await request.app[CONTEXT].client.read_stats()
    return web.json_response({"server_load": stats.scheduler.running + stats.scheduler.waiting})


async def loads(request: web.Request) -> web.Response:
    """GET /v1/loads, SGLang's: what the scheduler holds, for gateways that spread requests."""
    client = request.app[CONTEXT].client
    return web.json_response(loads_of(client.info, await client.read_stats()))


async def server_info(request: web.Request) -> web.Response:
    """GET /server_info: versions, the model's sizes, and the server's settings, without addresses and keys."""
    context = request.app[CONTEXT]
    return web.json_response(await asyncio.to_thread(_server_info, context))


def _server_info(context: Context) -> dict[str, Any]:
    settings = {name: getattr(context.options, name) for name in SHOWN_SETTINGS}
    return {
        "version": __version__,
        "model": context.model_name,
        "system_fingerprint": context.fingerprint,
        "uptime_seconds": round(time.time() - context.started, 3),
        "model_info": context.client.info._asdict(),
        "server_config": settings,
        "system_env": {"python": platform.python_version(), "platform": platform.platform(), **_versions()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def loads_of(info: ModelInfo, stats: EngineStats) -> dict[str, Any]:
    """One scheduler's load, in the form of a list over data-parallel ranks."""
    one = scheduler_load(info, stats)
    total = {
        "total_running_reqs": stats.scheduler.running,
        "total_waiting_reqs": stats.scheduler.waiting,
        "total_reqs": stats.scheduler.running + stats.scheduler.waiting,
        "avg_token_usage": one["token_usage"],
        "avg_utilization": one["utilization"],
    }
    now = datetime.now(UTC).isoformat()
    loads = [{"dp_rank": 0, **one}]
    return {"timestamp": now, "version": __version__, "dp_rank_count": 1, "loads": loads, "aggregate": total}


def fingerprint_of(info: ModelInfo) -> str:
    """`system_fingerprint`: changes with the version, the model, and how it is computed; not with free memory."""
    sizes = info.max_model_len, info.vocab_size, info.block_size
    types = info.dtype, info.weights, info.kv_cache_dtype
    parts = (info.name, *sizes, info.attention_backend, *types, info.mesh, *_versions().items())
    return f"jaxinfer-{__version__}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:8]}"
