"""Errors of Anthropic's Messages API: their form by status, and the fields that they name."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from jaxinfer.engine.types import FinishReason
from jaxinfer.server import messages_reply
from jaxinfer.server.loading import answer_while_loading
from jaxinfer.server.run import BACKLOG, bind_socket, url_of
from jaxinfer.serving.config import ServerConfig
from tests.engine.reading import until
from tests.server.conftest import Answer, Served
from tests.server.conversation import TEMPLATE
from tests.server.messages_server import COUNT, HI, MESSAGES, PADDING, WEATHER, check_error, with_context
from tests.server.openai_error import check
from tests.text.folders import byte_level_folder

BODY: dict[str, Any] = {"max_tokens": 9, "messages": HI}
USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}
CALLED = {"role": "assistant", "content": [USE]}
SCHEMA = {"type": "json_schema", "schema": {}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model", chat_template=TEMPLATE)


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [*HI, CALLED, {"role": "user", "content": list(blocks)}]}


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", **fields}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "messages: is empty"),
    "no messages beside a system prompt": ({"messages": [], "system": "a"}, "messages: is empty"),
    "a role": ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role: "),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content: is missing"),
    "a number for content": ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content: must be a string"),
    "a system prompt": ({"system": 1}, "system: must be a string or an array"),
    "a system block": ({"system": [{"type": "image"}]}, "system[0].type: "),
    "a block of another kind": (user({"type": "server_tool_use"}), "messages[2].content[0].type: "),
    "an image": (user({"type": "image", "source": {}}), "messages[2].content[0].type: image blocks are not supported"),
    "a document": (user({"type": "text", "text": "a"}, {"type": "document"}), "messages[2].content[1].type: document"),
    "an image of a tool": (
        user(result(content=[{"type": "image"}])), "messages[2].content[0].content[0].type: image blocks",
    ),
    "a result of no call": (
        user(result(tool_use_id="toolu_2")),
        "messages[2].content[0].tool_use_id: 'toolu_2' is the id of no tool_use block before it",
    ),
    "a result without an id": (user({"type": "tool_result"}), "messages[2].content[0].tool_use_id: is missing"),
    "a call of a user": (user(USE), "messages[2].content[0].type: a message of role user cannot have tool_use blocks"),
    "a result of the assistant": (
        {"messages": [{"role": "assistant", "content": [result()]}]},
        "messages[0].content[0].type: a message of role assistant cannot have tool_result blocks",
    ),
    "a call without a name": (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": {}}]}]},
        "messages[0].content[0].name: is missing",
    ),
    "input that is no object": (
        {"messages": [{"role": "assistant", "content": [{**USE, "input": "{}"}]}]},
        "messages[0].content[0].input: must be an object",
    ),
    "a call without a result": ({"messages": [*HI, CALLED]}, "messages[1].content: the calls of the last message"),
    "a tool's name": ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name: must have 1 to 64"),
    "a tool twice": ({"tools": [WEATHER, WEATHER]}, "tools[1].name: 'get_weather' is there twice"),
    "the place of a tool among others": (
        {"tools": [WEATHER, {"type": "bash_20250124", "name": "bash"}, {**WEATHER, "name": "a b"}]}, "tools[2].name: ",
    ),
    "no schema": ({"tools": [{"name": "f"}]}, "tools[0].input_schema: is missing"),
    "a schema": ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema: must be"),
    "a schema's part": (
        {"tools": [{"name": "f", "input_schema": {"properties": {"a": 1}}}]}, "tools[0].input_schema.properties.a: ",
    ),
    "a long tool": ({"tools": [{**WEATHER, "description": "x" * 70_000}]}, "tools[0]: has "),
    "only Anthropic's tools": (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type: tools that Anthropic",
    ),
    "a choice": ({"tools": [WEATHER], "tool_choice": {"type": "required"}}, "tool_choice.type: "),
    "a choice without tools": ({"tool_choice": {"type": "any"}}, "tool_choice: `any` needs tools"),
    "a choice without a name": ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name: is missing"),
    "a choice of no tool": (
        {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name: 'g' is none of the",
    ),
    "forced calls of a continued answer": (
        {"messages": [*HI, {"role": "assistant", "content": "a"}], "tools": [WEATHER], "tool_choice": {"type": "any"}},
        "tool_choice: is not supported yet for an answer that goes on with the last message",
    ),
    "a format": ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema: is missing"),
    "the older format": ({"output_format": {"type": "text", "schema": {}}}, "output_format.type: "),
    "two formats": ({"output_config": {"format": SCHEMA}, "output_format": SCHEMA}, "output_format: is the older name"),
    "an effort": ({"output_config": {"effort": "huge"}}, "output_config.effort: "),
    "thinking": ({"thinking": {"type": "perhaps"}}, "thinking.type: "),
    "no tokens": ({"max_tokens": 0}, "max_tokens: 0 is out of range"),
    "max_tokens that are absent": ({"max_tokens": None}, "max_tokens: must be an integer"),
    "a temperature": ({"temperature": -1}, "temperature: -1"),
    "stop sequences": ({"stop_sequences": ["x"] * 17}, "stop_sequences: has 17"),
    "an empty stop sequence": ({"stop_sequences": [""]}, "stop_sequences"),
    "a container": ({"container": "x"}, "container is not supported"),
    "a server of tools": ({"mcp_servers": [{"type": "url", "url": "http://a"}]}, "mcp_servers is not supported"),
    "a user": ({"metadata": {"user_id": 1}}, "metadata.user_id: must be a string"),
    "too many messages": ({"messages": HI * 10_001}, "messages: has 10001 messages"),
}  # fmt: skip
"""Fields, and how the message of the error begins."""


@pytest.mark.parametrize("name", WRONG)
async def test_an_error_names_anthropics_field(serve, name: str) -> None:
    served: Served = with_context(await serve())
    fields, said = WRONG[name]
    for padding in ({}, PADDING):
        answer = await served.post(MESSAGES, {**BODY, **fields, **padding})
        check_error(answer, 400, "invalid_request_error")
        assert answer.body["error"]["message"].startswith(said), answer.body
    assert served.engine.submitted == []


async def test_clients_learn_that_conversations_are_not_stored(serve) -> None:
    """By the code that Anthropic's packages look for; they then send the whole conversation."""
    served: Served = await serve()
    answer = await served.post(MESSAGES, {**BODY, "thread": {"type": "create"}})
    assert (answer.status, answer.body["error"]["type"]) == (400, "invalid_request_error")
    assert answer.body["error"]["details"] == {"error_code": "thread_unsupported_request"}


async def test_texts_are_named_where_they_stand(serve) -> None:
    served: Served = with_context(await serve(max_prompt_chars=64))
    long = "b" * 100
    for fields, said in (
        ({"system": long}, "system: "),
        ({"system": "a", "messages": [*HI, {"role": "user", "content": long}]}, "messages[1].content: "),
        ({**user(result(content=long)), "system": "a"}, "messages[2].content[0].content: "),
    ):
        answer = await served.post(MESSAGES, {**BODY, **fields})
        check_error(answer, 400, "invalid_request_error")
        assert answer.body["error"]["message"].startswith(said), answer.body


async def test_counting_refuses_the_same(serve) -> None:
    served: Served = with_context(await serve())
    answer = await served.post(COUNT, {"messages": HI, "tools": [{**WEATHER, "name": "a b"}]})
    check_error(answer, 400, "invalid_request_error", "tools[0].name: ")
    check_error(await served.post(COUNT, {"messages": HI, "model": "x"}), 404, "not_found_error", "model: ")


async def test_unknown_fields_follow_the_servers_policy(serve) -> None:
    served: Served = await serve(unknown_fields="refuse")
    answer = await served.post(MESSAGES, {**BODY, "foo": 1})
    check_error(answer, 400, "invalid_request_error", "foo: is not a known field")
    tools = [WEATHER, {"type": "web_search_20250305", "name": "web_search"}]
    for path in (MESSAGES, COUNT):
        body = {**BODY, "tools": tools} if path == MESSAGES else {"messages": HI, "tools": tools}
        answer = await served.post(path, body)
        check_error(answer, 400, "invalid_request_error", "tools[1]: has no effect: tools that Anthropic")


async def test_tools_of_a_model_whose_form_is_not_known_are_refused(serve, folder: Path) -> None:
    byte_level_folder(folder, chat_template="{{ tools }}{{ messages }}")
    served: Served = with_context(await serve())
    answer = await served.post(MESSAGES, {**BODY, "tools": [WEATHER]})
    check_error(answer, 400, "invalid_request_error", "tools: the form in which this model calls tools is not known")


async def test_every_status_has_anthropics_form(serve) -> None:
    served: Served = await serve(max_body_bytes=2000)
    session, url = served.session, served.url

    async def sent(method: str, path: str = MESSAGES, **options: Any) -> Answer:
        async with session.request(method, url + path, **options) as response:
            return Answer(response.status, await response.json(), response.headers)

    check_error(
        await sent("POST", data=b"{", headers={"Content-Type": "application/json"}), 400, "invalid_request_error"
    )
    check_error(await sent("POST", f"{MESSAGES}/batches", json={}), 404, "not_found_error", "no such endpoint")
    check_error(await sent("POST", json={**BODY, "model": "x"}), 404, "not_found_error", "model: 'x' is not served")
    got = await sent("GET")
    check_error(got, 405, "invalid_request_error")
    assert got.headers["Allow"] == "POST"
    check_error(await sent("POST", json={"system": "x" * 3000}), 413, "request_too_large", "--max-body-bytes")
    check_error(await sent("POST", data=b"{}", headers={"Content-Type": "text/plain"}), 415, "invalid_request_error")
    expecting = {"Expect": "tea", "Content-Type": "application/json"}
    check_error(await sent("POST", data=b"{}", headers=expecting), 417, "invalid_request_error")
    served.engine.max_waiting = 0
    full = await sent("POST", json=BODY)
    check_error(full, 429, "rate_limit_error")
    assert full.headers["Retry-After"] == "7"
    served.engine.max_waiting = 9
    served.engine.end_at_once = FinishReason.ERROR
    check_error(await sent("POST", json=BODY), 500, "api_error", "the engine failed")
    served.engine.die()
    check_error(await sent("POST", json=BODY), 503, "overloaded_error")
    check(await sent("POST", "/v1/messagesx", json=BODY), 404, None)  # OpenAI's form is that of all others


async def test_an_unforeseen_failure_tells_nothing(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served: Served = await serve()
    monkeypatch.setattr(messages_reply, "as_chat", lambda body: 1 / 0)
    check_error(await served.post(MESSAGES, BODY), 500, "api_error", "its log says why")


@pytest.mark.parametrize(
    ("param", "said"),
    [
        ("response_format.json_schema.schema", "output_config.format.schema: no token is left"),
        ("tools[1].function.parameters", "tools[1].input_schema: no token is left"),
        ("stop", "stop_sequences: no token is left"),
        (None, "the engine failed on this request: no token is left"),
    ],
)
async def test_an_error_of_the_engine_names_anthropics_field(serve, param: str | None, said: str) -> None:
    served: Served = await serve()
    served.engine.gate.clear()
    asking = asyncio.create_task(served.post(MESSAGES, BODY))
    await until(lambda: len(served.engine.active) == 1)
    served.engine.fail_requests("no token is left", param)
    answer = await asking
    check_error(answer, *((500, "api_error") if param is None else (400, "invalid_request_error")))
    assert answer.body["error"]["message"] == said


async def test_a_key_is_asked_for(serve) -> None:
    served: Served = await serve(api_key="secret")
    for path in (MESSAGES, COUNT):
        body = {"messages": HI, **({"max_tokens": 9} if path == MESSAGES else {})}
        check_error(await served.post(path, body), 401, "authentication_error", "X-Api-Key: KEY")
        for headers in ({"x-api-key": "secret", "anthropic-version": "2023-06-01"}, {"Authorization": "Bearer secret"}):
            answer = await served.post(path, body, headers=headers)
            assert (answer.status, "X-Ignored-Fields" in answer.headers) == (200, False)


async def test_a_host_that_is_not_served(serve) -> None:
    served: Served = await serve()
    answer = await served.post(MESSAGES, BODY, headers={"Host": "example.org"})
    check_error(answer, 403, "permission_error", "example.org")


async def test_while_the_model_loads() -> None:
    bound = bind_socket(ServerConfig(port=0))
    async with (
        aiohttp.ClientSession() as session,
        answer_while_loading(bound, BACKLOG),
        session.post(url_of(bound) + MESSAGES, json=BODY) as response,
    ):
        check_error(Answer(response.status, await response.json(), response.headers), 503, "overloaded_error")


async def test_an_id_of_the_clients_own_is_the_requests(serve) -> None:
    served: Served = await serve()
    headers = {"X-Request-Id": "mine"}
    answer = await served.post(MESSAGES, BODY, headers=headers)
    assert (answer.body["id"], answer.headers["request-id"], answer.headers["X-Request-Id"]) == (
        "msg_mine",
        "mine",
        "mine",
    )
    wrong = await served.post(MESSAGES, {}, headers=headers)
    assert wrong.body["request_id"] == "mine"
