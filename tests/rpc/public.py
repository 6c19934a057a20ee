"""A gRPC server of this process before any engine, and plain grpcio channels to it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from jaxinfer.engine.client.base import EngineClient
from jaxinfer.rpc import jaxinfer_pb2 as pb
from jaxinfer.rpc import jaxinfer_pb2_grpc
from jaxinfer.rpc.serving import GrpcServer
from jaxinfer.server.app import make_app
from jaxinfer.server.context import CONTEXT
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.context import Context
from jaxinfer.text import TextProcessor
from tests.server.fake_engine import FakeEngine


class Public(NamedTuple):
    """A server that runs, a channel to it, and its stub."""

    server: GrpcServer
    engine: Any
    context: Context
    channel: grpc.aio.Channel
    stub: Any


Serve = Callable[..., Awaitable[Public]]


@contextlib.asynccontextmanager
async def public(folder: Path, engine: EngineClient | None = None, **options: Any) -> AsyncIterator[Public]:
    """engine: by default one that says what it is told."""
    config = ServerConfig(**{"grpc_port": 0, "drain_seconds": 2.0, **options})
    text = TextProcessor.from_folder(folder, max_chars=config.max_prompt_chars)
    client = engine or FakeEngine(text.tokenizer)
    context = make_app(client, text, config)[CONTEXT]
    server = GrpcServer()
    await server.start(context)
    channel = grpc.aio.insecure_channel(server.address)
    try:
        yield Public(server, client, context, channel, jaxinfer_pb2_grpc.JaxinferStub(channel))
    finally:
        await channel.close()
        await server.stop(0.5)
        await client.close()
        context.workers.close()
        text.close()


def stub_of(kind: Any, channel: grpc.aio.Channel) -> Any:
    """A stub whose calls a type checker does not look for: they are made when it is."""
    return kind(channel)


async def collect(call: Any) -> list[pb.GenerateResponse]:
    """Everything that a stream brings."""
    async with asyncio.timeout(30):
        return [message async for message in call]


def text_of(messages: list[pb.GenerateResponse], index: int = 0) -> str:
    """The text of one choice."""
    return "".join(choice.text for message in messages for choice in message.choices if choice.index == index)


def tokens_of(messages: list[pb.GenerateResponse], index: int = 0) -> list[int]:
    """The tokens of one choice."""
    found = (choice.token_ids for message in messages for choice in message.choices if choice.index == index)
    return [token for tokens in found for token in tokens]


async def refused(call: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """How a call or a stream is refused: status, details and trailers."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await (collect(call) if hasattr(call, "__aiter__") else call)
    error = raised.value
    trailers = {key: str(value) for key, value in error.trailing_metadata() or ()}
    assert "Traceback" not in str(error.details())
    return error.code(), error.details() or "", trailers
