"""A server ends: what its clients see, whoever gets the signal, and in what time."""

import asyncio
import json
import signal
import socket
from pathlib import Path

import psutil
import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.errors import ParameterError
from jaxinfer.hosts.launch import HostPlace
from jaxinfer.processes.following import serve_follower
from jaxinfer.serving.config import ServerConfig
from tests.cli.command_line import SLOW_STEPS
from tests.processes.serving import serving
from tests.text.folders import byte_level_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model")


async def test_sigterm_to_all_processes_lets_streams_end(folder: Path) -> None:
    """As systemd sends it."""
    async with serving(folder, "--drain-seconds", "30", program=SLOW_STEPS) as server:
        supervisor = psutil.Process(server.process.pid)
        stream = asyncio.create_task(server.stream(prompt=[1, 2, 3], max_tokens=4))
        await server.until_running(1)
        for process in [*supervisor.children(), supervisor]:
            process.send_signal(signal.SIGTERM)
        answer = await stream
        assert (len(answer.tokens), answer.end) == (4, "[DONE]")
        assert await asyncio.wait_for(server.process.wait(), 20) == 0


@pytest.mark.long
async def test_a_client_that_does_not_read_is_cut_off(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with serving(folder, "--max-num-seqs", "16", log=log) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as idle:
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.connect((host, int(port)))
            asked = {"prompt": [[1, 2, 3]] * 32, "max_tokens": 60, "n": 8, "logprobs": 20, "return_token_ids": True}
            body = json.dumps({**asked, "stream": True, "ignore_eos": True})
            fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            idle.sendall(f"POST /v1/completions HTTP/1.1\r\n{fields}\r\n\r\n{body}".encode())
            while await server.metric("vllm:generation_tokens_total") < 32 * 60 * 8:
                await asyncio.sleep(0.1)
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(server.process.wait(), 20) == 0
    assert "did not end" not in log.read_text()


async def test_a_followers_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ParameterError, match=f"port: cannot listen on 127.0.0.1:{port}"):
            await serve_follower(EngineConfig(), ServerConfig(port=port), HostPlace("127.0.0.1:1", 2, 1))
