"""A server of this process on a free loopback port, before a FakeEngine."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import openai
import pytest

from jaxinfer.engine.client.local import LocalEngineClient
from jaxinfer.llm import engine_config
from jaxinfer.server.run import bind_socket, start, url_of
from jaxinfer.serving.config import ServerConfig
from jaxinfer.text import TextProcessor, Tokenizer
from jaxinfer.text.template.template_process import TemplateLimits
from tests.llm import simulated
from tests.server.fake_engine import FakeEngine
from tests.text.folders import byte_level_folder


class Answer(NamedTuple):
    status: int
    body: Any
    headers: Any


class Served(NamedTuple):
    """A running server, and what talks to it."""

    url: str
    engine: FakeEngine
    client: Any  # openai.AsyncOpenAI, whose overloads want literal types
    session: aiohttp.ClientSession

    async def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        options = {"json": body, **options} if body is not None else options
        async with self.session.post(self.url + path, **options) as response:
            return Answer(response.status, await response.json(), response.headers)

    async def get(self, path: str, **options: Any) -> Answer:
        async with self.session.get(self.url + path, **options) as response:
            return Answer(response.status, await response.json(), response.headers)


class Local(NamedTuple):
    """A running server, its engine, and the openai package's client."""

    url: str
    engine: LocalEngineClient
    client: Any  # openai.AsyncOpenAI, whose overloads want literal types
    tokenizer: Tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The model folder that is served; a test may write to it before it serves."""
    return byte_level_folder(tmp_path / "model")


@pytest.fixture
async def serve(folder: Path) -> AsyncIterator[Callable[..., Awaitable[Served]]]:
    closing: list[Callable[[], Awaitable[Any]]] = []
    texts: list[TextProcessor] = []

    async def make(*, limits: TemplateLimits | None = None, **options: Any) -> Served:
        config = ServerConfig(**{"port": 0, "drain_seconds": 2.0, **options})
        text = TextProcessor.from_folder(
            folder,
            max_chars=config.max_prompt_chars,
            template_limits=limits,
            control_tokens_in_content=config.control_tokens_in_content,
        )
        engine = FakeEngine(text.tokenizer)
        bound = bind_socket(config)
        runner = await start(engine, text, config, bound)
        client = openai.AsyncOpenAI(base_url=url_of(bound) + "/v1", api_key=config.api_key or "none", max_retries=0)
        session = aiohttp.ClientSession()
        texts.append(text)
        closing.extend([engine.close, runner.cleanup, session.close, client.close])
        return Served(url_of(bound), engine, client, session)

    yield make
    for close in reversed(closing):
        await close()
    for text in texts:
        text.close()


@pytest.fixture
async def serve_local(folder: Path) -> AsyncIterator[Callable[..., Awaitable[Local]]]:
    closing: list[Callable[[], Awaitable[Any]]] = []
    texts: list[TextProcessor] = []

    async def make(**flags: Any) -> Local:
        text = TextProcessor.from_folder(folder)
        engine = LocalEngineClient(simulated.build_engine(engine_config(str(folder), None, flags)).core)
        options = ServerConfig(port=0, drain_seconds=2.0, served_model_name=("m",))
        bound = bind_socket(options)
        runner = await start(engine, text, options, bound)
        client = openai.AsyncOpenAI(base_url=url_of(bound) + "/v1", api_key="none", max_retries=0, timeout=60)
        texts.append(text)
        closing.extend([engine.close, runner.cleanup, client.close])
        return Local(url_of(bound), engine, client, text.tokenizer)

    yield make
    for close in reversed(closing):
        await close()
    for text in texts:
        text.close()
