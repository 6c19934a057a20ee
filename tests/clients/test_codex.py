"""Codex CLI, which speaks /v1/responses alone: one turn with a command, by a model that follows a script.

The demo model's context is too short for its prompts, so that a FakeEngine answers.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.server.run import bind_socket, start, url_of
from jaxinfer.serving.config import ServerConfig
from jaxinfer.text import TextProcessor
from tests.clients.environments import UnavailableError, cache_folder, ensure
from tests.clients.manifest import Environment
from tests.server.conversation import TEMPLATE
from tests.server.fake_engine import FakeEngine
from tests.text.folders import byte_level_folder

CODEX = Environment("codex", "node", ("@openai/codex@0.171.0",))
CALL = '<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "echo forty-$((40+2)) | tee out.txt"}}\n</tool_call>'

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[str, FakeEngine]]:
    """A server whose model calls a command, and then says what the command has said."""
    text = TextProcessor.from_folder(byte_level_folder(tmp_path / "model", chat_template=TEMPLATE))

    def reply(request: GenerateRequest, index: int) -> str:
        prompt = text.tokenizer.decode(list(map(int, request.prompt_token_ids)), skip_special_tokens=False)
        _, _, said = prompt.partition("<|tool|>")
        return f"It said {said.partition('<|end|>')[0].split()[-1]}." if said else CALL

    engine = FakeEngine(text.tokenizer, reply)
    engine.info = engine.info._replace(max_model_len=1_000_000)
    config = ServerConfig(port=0)
    bound = bind_socket(config)
    runner = await start(engine, text, config, bound)
    yield url_of(bound), engine
    await engine.close()
    await runner.cleanup()
    text.close()


@pytest.mark.skipif(bool(os.environ.get("CI")), reason="Codex is a download of 400 MB")
async def test_a_turn_with_a_command(served: tuple[str, FakeEngine], tmp_path: Path) -> None:
    url, engine = served
    try:
        folder = await asyncio.to_thread(ensure, CODEX, cache_folder())
    except UnavailableError as error:
        pytest.skip(f"no environment for Codex: {error}")
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    provider = f'model_providers.local={{name="local",base_url="{url}/v1",wire_api="responses"}}'
    process = await asyncio.create_subprocess_exec(
        "node", folder / "node_modules" / "@openai" / "codex" / "bin" / "codex.js", "exec", "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox", "-c", "model_provider=local", "-c", provider, "-m", "fake",
        "What does echo say?", cwd=work, env={"PATH": os.environ["PATH"], "HOME": str(home)},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, said.decode()
    assert said.decode().rstrip().endswith("It said forty-42.")
    assert (work / "out.txt").read_text() == "forty-42\n"
    assert len(engine.submitted) == 2
