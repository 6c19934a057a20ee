"""Every bad request is a 4xx with a message that helps, and the server goes on serving others meanwhile."""

from pathlib import Path

import pytest

from tests.server.bad_requests import BAD, Bad
from tests.server.conftest import Served
from tests.text.folders import CHAT_TEMPLATE, byte_level_folder

BOMB = "{% if messages[0].content == 'boom' %}{{ 'a' * 10**10 }}{% endif %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model", chat_template=BOMB + CHAT_TEMPLATE)


async def send(served: Served, bad: Bad) -> None:
    headers = {"Content-Type": "application/json", **bad.headers}
    answer = await served.post(bad.path, data=bad.data, headers=headers)
    assert answer.status == bad.status, answer.body
    assert answer.headers["Content-Type"].startswith("application/json")
    error = answer.body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == bad.param, error
    assert bad.said.lower() in error["message"].lower(), error
    assert 10 < len(error["message"]) < 1_100


def test_the_table_is_long_enough() -> None:
    assert len(BAD) >= 80


@pytest.mark.few(21)
@pytest.mark.parametrize("name", BAD)
async def test_a_bad_request_is_told_what_is_wrong(serve, name: str) -> None:
    served: Served = await serve(max_body_bytes=1_000_000, max_prompt_chars=50_000, sse_keep_alive_interval=0.01)
    served.engine.gate.clear()
    stream = await served.client.completions.create(model="fake", prompt="a", stream=True)
    await send(served, BAD[name])
    assert len(served.engine.submitted) == 1  # nothing of it has reached the engine
    served.engine.gate.set()
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "hello world"
    assert (await served.post("/v1/completions", {"prompt": "a"})).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("GET", "/v1/completions", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET"),
        ("POST", "/v1/models", 405, "GET"),
        ("POST", "/v1/edits", 404, "endpoint"),
        ("GET", "/v1/models/gpt-5", 404, "not served"),
        ("GET", "/..%2f..%2fetc/passwd", 404, "endpoint"),
    ],
)
async def test_a_wrong_path_or_method(serve, method: str, path: str, status: int, said: str) -> None:
    served: Served = await serve()
    async with served.session.request(method, served.url + path) as response:
        assert response.status == status
        assert (said in response.headers.get("Allow", "")) == (status == 405)
        assert said in (await response.json())["error"]["message"]
