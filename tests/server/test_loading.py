"""What a server answers while its model is loaded, its first page, and how many requests it takes."""

import asyncio
import subprocess
from pathlib import Path

import aiohttp
import pytest

from jaxinfer.server.loading import answer_while_loading
from jaxinfer.server.run import BACKLOG, bind_socket, start, url_of
from jaxinfer.serving.config import ServerConfig
from jaxinfer.text import TextProcessor
from jaxinfer.version import __version__
from tests.cli.command_line import ENVIRONMENT, slow
from tests.engine.reading import until
from tests.material import REPOSITORY
from tests.server.conftest import Served
from tests.server.fake_engine import FakeEngine
from tests.server.openai_error import check


async def test_probes_are_answered_and_others_told_to_come_back(folder: Path) -> None:
    options = ServerConfig(port=0)
    bound = bind_socket(options)
    async with aiohttp.ClientSession() as session:
        async with answer_while_loading(bound, BACKLOG):
            async with session.get(url_of(bound) + "/healthz") as response:
                assert response.status == 200
            for method, path in (("GET", "/readyz"), ("GET", "/health"), ("POST", "/v1/completions")):
                async with session.request(method, url_of(bound) + path) as response:
                    assert response.status == 503
                    assert response.headers["Retry-After"] == "5"
                    assert (await response.json())["error"]["code"] == "loading"
        # Who comes in between waits for the server.
        early = asyncio.create_task(session.get(url_of(bound) + "/readyz"))
        await asyncio.sleep(0.1)
        assert not early.done()
        text = TextProcessor.from_folder(folder)
        runner = await start(FakeEngine(text.tokenizer), text, options, bound)
        assert (await early).status == 200
        await runner.cleanup()
        text.close()


async def test_serve_listens_from_the_beginning(folder: Path) -> None:
    bound = bind_socket(ServerConfig(port=0))
    port = bound.getsockname()[1]
    bound.close()
    command = [*slow("build"), "serve", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, cwd=REPOSITORY, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert await asyncio.to_thread(process.stderr.readline) == "loading weights: 1 MiB\n"
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/readyz") as response:
            assert response.status == 503
    finally:
        process.kill()
        process.communicate()


async def test_the_first_page_is_a_line_for_people(serve) -> None:
    served: Served = await serve(api_key="secret")
    async with served.session.get(served.url) as response:
        assert response.status == 200
        assert response.content_type == "text/plain"
        told = await response.text()
    assert told.startswith(f"jaxinfer {__version__} serves fake: /v1/completions, /v1/chat/completions, ")
    assert told.endswith("/metrics\n")
    for path in told.split(": ")[1].strip().split(", "):
        async with served.session.get(served.url + path) as response:
            assert response.status in (200, 401, 405)


async def test_requests_under_way_are_bounded(serve) -> None:
    served: Served = await serve(max_open_requests=2)
    served.engine.gate.clear()
    waiting = [asyncio.create_task(served.post("/v1/completions", {"prompt": "a"})) for _ in range(2)]
    await until(lambda: len(served.engine.active) == 2)
    answer = await served.post("/tokenize", {"prompt": "a"})
    check(answer, 429, None, "2 requests")
    assert answer.headers["Retry-After"] == "1"
    assert (await served.get("/readyz")).status == 200
    served.engine.gate.set()
    assert [(await task).status for task in waiting] == [200, 200]
    assert (await served.post("/tokenize", {"prompt": "a"})).status == 200


async def test_a_bad_request_gives_its_place_back(serve) -> None:
    served: Served = await serve(max_open_requests=1)
    for _ in range(3):
        check(await served.post("/v1/completions", {"prompt": ""}), 400, "prompt")
    assert (await served.post("/v1/completions", {"prompt": "a"})).status == 200


@pytest.mark.parametrize("wanted", [False, True])
async def test_an_access_log_where_it_is_wanted(serve, caplog: pytest.LogCaptureFixture, wanted: bool) -> None:
    caplog.set_level("INFO")
    served: Served = await serve(access_log=wanted)
    await served.post("/v1/completions", {"prompt": "a"})
    lines = [record.getMessage() for record in caplog.records if record.name == "jaxinfer.access"]
    assert len(lines) == wanted
    assert all('"POST /v1/completions HTTP/1.1" 200' in line for line in lines)
