"""Who may come in, and what the server survives: keys, headers, queues, lost clients, template bombs."""

import ast
import asyncio
import contextlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from jaxinfer.errors import ParameterError
from jaxinfer.server.run import bind_socket
from jaxinfer.server.stream import EventStream
from jaxinfer.serving.config import ServerConfig, check_binding
from jaxinfer.text.template.template_process import TemplateLimits
from tests.children import children_with
from tests.engine.reading import until
from tests.material import REPOSITORY
from tests.server.conftest import Served
from tests.server.conversation import CHAT
from tests.server.openai_error import check


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_others_can_reach_the_server_only_with_a_key(host: str) -> None:
    with pytest.raises(ParameterError, match=r"host: .* give --api-key"):
        bind_socket(ServerConfig(host=host, port=0))


def test_a_name_counts_as_an_address_of_others() -> None:
    check_binding(ServerConfig(host="localhost"))
    with pytest.raises(ParameterError, match=r"host: .* give --api-key"):
        check_binding(ServerConfig(host="example.org"))


def test_loopback_is_the_default() -> None:
    bound = bind_socket(ServerConfig(port=0))
    assert bound.getsockname()[0] == "127.0.0.1"
    bound.close()
    bind_socket(ServerConfig(host="0.0.0.0", port=0, api_key="secret")).close()


def test_a_port_in_use_is_an_error_before_a_model_is_loaded() -> None:
    first = bind_socket(ServerConfig(port=0))
    first.listen()
    with pytest.raises(ParameterError, match="port: cannot listen"):
        bind_socket(ServerConfig(port=first.getsockname()[1]))
    first.close()


async def test_the_api_key_is_asked_for_under_v1(serve) -> None:
    served: Served = await serve(api_key="secret")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}, {"Authorization": "x"}):
        check(await served.post("/v1/completions", {"prompt": "a"}, headers=headers), 401, None)
        check(await served.get("/v1/models", headers=headers), 401, None)
    assert (await served.get("/healthz")).status == 200
    assert (await served.client.completions.create(model="fake", prompt="a")).choices[0].text == "hello world"


async def test_keys_are_compared_by_digest_in_constant_time(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served: Served = await serve(api_key="secret")
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    await served.get("/v1/models", headers={"Authorization": "Bearer wrong"})
    assert {(len(a), len(b)) for a, b in compared} == {(32, 32)}


async def test_a_giant_header_is_refused_and_the_server_goes_on(serve) -> None:
    served: Served = await serve(max_header_bytes=4096)
    host, port = served.url.removeprefix("http://").split(":")
    for head in (b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 10_000, b"GET /" + b"a" * 10_000 + b" HTTP/1.1"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head + b"\r\n\r\n")
        assert b" 431 " in await reader.readline()
        assert b"longer than 4096 bytes (--max-header-bytes)" in await reader.read()
        writer.close()
    assert (await served.get("/healthz")).status == 200


async def test_a_full_queue_is_429_with_retry_after(serve) -> None:
    served: Served = await serve()
    served.engine.max_waiting = 0
    answer = await served.post("/v1/completions", {"prompt": "a", "stream": True})
    check(answer, 429, None)
    assert answer.headers["Retry-After"] == "7"


async def test_a_queue_that_is_full_for_the_second_prompt_takes_none(serve) -> None:
    served: Served = await serve()
    served.engine.max_waiting = 1
    served.engine.gate.clear()
    check(await served.post("/v1/completions", {"prompt": ["a", "b"]}), 429, None)
    assert served.engine.active == set()
    assert served.engine.aborted == [served.engine.submitted[0].request_id]


@pytest.mark.smoke
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
async def test_a_lost_client_frees_its_requests(serve, stream: bool, prompt: object) -> None:
    served: Served = await serve(sse_keep_alive_interval=0.01)
    served.engine.gate.clear()
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"prompt": prompt, "stream": stream, "max_tokens": 200}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await until(lambda: len(served.engine.active) == len(prompt if isinstance(prompt, list) else [prompt]))
    if stream:
        assert b" 200 " in await reader.readline()
    writer.transport.abort()
    await until(lambda: not served.engine.active)
    assert served.engine.aborted == [request.request_id for request in served.engine.submitted]


async def test_a_client_that_closes_in_mid_stream_frees_its_request(serve) -> None:
    served: Served = await serve()
    served.engine.reply = "word " * 50
    stream = await served.client.completions.create(model="fake", prompt="a", max_tokens=240, stream=True)
    async for _ in stream:
        served.engine.gate.clear()
        break
    await stream.close()
    await until(lambda: not served.engine.active)
    assert served.engine.aborted


@pytest.mark.parametrize(("moment", "fails"), [("prepare", False), ("send", False), ("end", False), ("end", True)])
async def test_a_client_lost_at_any_moment_of_a_stream_is_no_failure(
    serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, moment: str, fails: bool
) -> None:
    served: Served = await serve()
    reached = asyncio.Event()

    async def lost(*_: object) -> None:
        reached.set()
        raise ConnectionResetError

    monkeypatch.setattr(web.StreamResponse if moment == "prepare" else EventStream, moment, lost)
    with contextlib.suppress(aiohttp.ClientError):
        response = await served.session.post(
            served.url + "/v1/completions",
            json={"prompt": "a", "stream": True, "max_tokens": 20, "ignore_eos": True},
            timeout=aiohttp.ClientTimeout(2),
        )
        if fails:
            served.engine.gate.clear()
            await response.content.readline()
            served.engine.fail_requests("a kernel failed")
    await asyncio.wait_for(reached.wait(), 10)
    await until(lambda: not served.engine.active)
    assert not [record for record in caplog.records if record.name.startswith("jaxinfer")]


async def test_a_request_that_ended_is_not_aborted(serve) -> None:
    served: Served = await serve()
    await served.post("/v1/completions", {"prompt": ["a", "b"], "n": 2})
    assert served.engine.aborted == []


async def test_a_template_bomb_is_a_400_and_the_server_goes_on(serve, folder: Path) -> None:
    bomb = "{% if messages[0].content == 'boom' %}{{ 'a' * 10**10 }}{% endif %}fine"
    (folder / "chat_template.jinja").write_text(bomb)
    served: Served = await serve()
    boom = served.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "boom"}]})
    check(await boom, 400, "messages", "memory")
    assert (await served.post("/v1/chat/completions", {"messages": CHAT})).status == 200


@pytest.mark.long
async def test_a_template_does_not_block_the_event_loop(serve, folder: Path) -> None:
    slow = "{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}"
    (folder / "chat_template.jinja").write_text(slow)
    served: Served = await serve(limits=TemplateLimits(cpu_seconds=1))
    chat = asyncio.create_task(served.post("/v1/chat/completions", {"messages": CHAT}))
    await asyncio.sleep(0.1)
    assert (await served.post("/v1/completions", {"prompt": "a"})).status == 200
    assert not chat.done()
    check(await chat, 400, "messages", "processor time")


async def test_a_template_process_that_stalls_is_a_503_and_the_next_request_is_served(serve) -> None:
    served: Served = await serve(limits=TemplateLimits(wall_seconds=4.0))
    assert (await served.post("/v1/chat/completions", {"messages": CHAT})).status == 200
    for child in children_with("template_worker"):
        child.suspend()
    response = await served.post("/v1/chat/completions", {"messages": CHAT})
    assert response.status == 503
    assert response.headers["Retry-After"] == "1"
    assert response.body["error"]["code"] == "worker_lost"
    assert (await served.post("/v1/chat/completions", {"messages": CHAT})).status == 200


@pytest.mark.parametrize("name", ["messages", "tokenize", "add_generation_prompt", "unheard_of"])
async def test_template_arguments_are_on_an_allow_list(serve, name: str) -> None:
    served: Served = await serve()
    body = {"messages": CHAT, "chat_template_kwargs": {name: []}}
    check(await served.post("/v1/chat/completions", body), 400, f"chat_template_kwargs.{name}", "style")


async def test_template_arguments_reach_the_template(serve) -> None:
    served: Served = await serve()
    body = {"messages": CHAT, "chat_template_kwargs": {"style": "plain"}, "add_generation_prompt": False}
    assert (await served.post("/v1/chat/completions", body)).status == 200
    sent = served.engine.tokenizer.decode(served.engine.submitted[0].prompt_token_ids, skip_special_tokens=False)
    assert sent == "<|user|>hi<|end|>plain"


async def test_no_code_of_a_model_folder_is_run(serve, folder: Path) -> None:
    marker = folder / "ran"
    (folder / "tokenization_evil.py").write_text(f"open({str(marker)!r}, 'w')")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["tokenization_evil.Evil", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    served: Served = await serve()
    assert (await served.post("/v1/chat/completions", {"messages": CHAT})).status == 200
    assert not marker.exists()


async def test_defaults_of_generation_config_apply_where_a_request_is_silent(serve, folder: Path) -> None:
    defaults = {"temperature": 0.25, "top_k": 9, "max_new_tokens": 5, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(defaults))
    served: Served = await serve()
    await served.post("/v1/completions", {"prompt": "a", "top_k": 3})
    await served.post("/v1/chat/completions", {"messages": CHAT, "temperature": 0.0, "max_tokens": 7})
    first, second = (request.sampling for request in served.engine.submitted)
    assert (first.temperature, first.top_k, first.max_tokens) == (0.25, 3, 5)
    assert (second.temperature, second.top_k, second.max_tokens) == (0.0, 9, 7)


async def test_do_sample_false_makes_greedy_the_default(serve, folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": False}))
    served: Served = await serve()
    await served.post("/v1/chat/completions", {"messages": CHAT})
    assert served.engine.submitted[0].sampling.greedy
    assert served.engine.submitted[0].sampling.max_tokens is None


@pytest.mark.parametrize("package", ["text", "server", "metrics", "cli", "engine"])
def test_nothing_that_reads_from_outside_can_unpickle(package: str) -> None:
    # Whatever crosses a process or a socket is JSON: a module that cannot run code by being read.
    for file in (REPOSITORY / "jaxinfer" / package).rglob("*.py"):
        names = set(_imported(ast.parse(file.read_text())))
        assert not names & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "multiprocessing"}, file


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]
