"""Errors of /v1/responses name fields as the request calls them, however the chat that it becomes calls them."""

import asyncio
from pathlib import Path

import openai
import pytest

from jaxinfer.server.body_budget import BodyBudget
from jaxinfer.server.incoming import IncomingBody
from jaxinfer.serving.bodies.structure import LARGE_BYTES
from jaxinfer.serving.errors import RequestError
from tests.server.conftest import Served
from tests.server.conversation import TEMPLATE
from tests.server.conversation import WEATHER_ITEM as WEATHER
from tests.server.openai_error import check
from tests.text.folders import byte_level_folder

PATH = "/v1/responses"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model", chat_template=TEMPLATE)


@pytest.mark.parametrize(
    ("param", "said", "body"),
    [
        ("input", "missing", {}),
        ("input", "empty", {"input": []}),
        ("input[0].role", "1 to 64", {"input": [{"content": "a", "role": ""}]}),
        ("input[0].content", "missing", {"input": [{"role": "user"}]}),
        ("input[1].content[0].type", "input_image",
         {"input": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "input_image"}]}]}),
        ("input[0].content[0]", "text", {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}),
        ("input[0].type", "computer_call", {"input": [{"type": "computer_call"}]}),
        ("input[0].id", "not found", {"input": [{"type": "item_reference", "id": "msg_x"}]}),
        ("input[0].id", "missing", {"input": [{"type": "item_reference"}]}),
        ("input[0].name", "missing", {"input": [{"type": "function_call", "call_id": "c"}]}),
        ("input[0].output", "missing", {"input": [{"type": "function_call_output", "call_id": "c"}]}),
        ("previous_response_id", "not found", {"input": "a", "previous_response_id": "resp_x"}),
        ("max_output_tokens", "at least 1", {"input": "a", "max_output_tokens": 0}),
        ("max_tokens", "max_output_tokens", {"input": "a", "max_tokens": 5}),
        ("response_format", "text.format", {"input": "a", "response_format": {"type": "text"}}),
        ("text.format.type", "must be one of", {"input": "a", "text": {"format": {"type": "xml"}}}),
        ("text.format.schema", "missing", {"input": "a", "text": {"format": {"type": "json_schema", "name": "a"}}}),
        ("text.verbosity", "", {"input": "a", "text": {"verbosity": "loud"}}),
        ("reasoning.effort", "", {"input": "a", "reasoning": {"effort": "much"}}),
        ("top_logprobs", "include", {"input": "a", "top_logprobs": 2}),
        ("top_logprobs", "out of range",
         {"input": "a", "top_logprobs": 99, "include": ["message.output_text.logprobs"]}),
        ("tools[0].name", "missing", {"input": "a", "tools": [{"type": "function"}]}),
        ("tools[0].name", "letters", {"input": "a", "tools": [{"type": "function", "name": "a b"}]}),
        ("tools[1].tools[0].name", "twice",
         {"input": "a", "tools": [{"type": "function", "name": "n.f"},
                                  {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]}),
        ("tools[0].type", "gadget", {"input": "a", "tools": [{"type": "gadget", "name": "a"}]}),
        ("tools[1].parameters", "object",
         {"input": "a", "tools": [{"type": "mcp"},
                                  {"type": "function", "name": "f", "parameters": {"type": "array"}}]}),
        ("tool_choice", "needs tools", {"input": "a", "tool_choice": "required"}),
        ("tool_choice.name", "none of the tools",
         {"input": "a", "tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}),
        ("tool_choice.tools[0].name", "none of the tools",
         {"input": "a", "tools": [WEATHER], "tool_choice": {
             "type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]}}),
        ("background", "not supported", {"input": "a", "background": True}),
        ("conversation", "not supported", {"input": "a", "conversation": "conv_1"}),
        ("prompt", "not supported", {"input": "a", "prompt": {"id": "pmpt_1"}}),
        ("n", "one answer", {"input": "a", "n": 2}),
        ("metadata", "16", {"input": "a", "metadata": {"a": "x" * 513}}),
        ("temperature", "out of range", {"input": "a", "temperature": -1}),
    ],
)  # fmt: skip
async def test_an_error_names_the_field_as_it_is_called_here(serve, param: str, said: str, body: dict) -> None:
    served: Served = await serve()
    answer = await served.post(PATH, body)
    check(answer, 404 if said == "not found" and param != "previous_response_id" else 400, param, said)
    assert served.engine.submitted == []


async def test_errors_count_the_items_of_the_request_alone(serve) -> None:
    served: Served = await serve()
    first = await served.client.responses.create(model="fake", input="hi")
    body = {"input": [{"role": "user", "content": "a"}, {"role": "user"}], "previous_response_id": first.id}
    check(await served.post(PATH, body), 400, "input[1].content", "missing")
    too_long = {"input": "a" * 3000, "previous_response_id": first.id}
    check(await served.post(PATH, too_long), 400, "input", "too long")


async def test_the_openai_packages_errors(serve) -> None:
    served: Served = await serve()
    with pytest.raises(openai.NotFoundError):
        await served.client.responses.create(model="absent", input="hi")
    with pytest.raises(openai.BadRequestError) as raised:
        await served.client.responses.create(model="fake", input="hi", previous_response_id="resp_absent")
    assert raised.value.code == "previous_response_not_found"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("named", "param"),
    [("tools[0].function.parameters", "tools[1].parameters"), ("response_format.schema", "text.format.schema")],
)
async def test_what_cannot_be_drawn_is_named(serve, stream: bool, named: str, param: str) -> None:
    """The engine's words for a constraint are those of a chat, too."""
    served: Served = await serve()
    served.engine.gate.clear()
    body = {"input": "hi", "tools": [{"type": "mcp"}, WEATHER], "stream": stream}
    asking = asyncio.create_task(served.post(PATH, body))
    while not served.engine.active:
        await asyncio.sleep(0.01)
    served.engine.fail_requests("no token is left", named)
    check(await asking, 400, param, "no token is left")


async def test_a_conversation_is_no_longer_than_a_body_may_be(serve) -> None:
    served: Served = await serve(max_body_bytes=2000)
    junk = {"role": "user", "content": "a", "junk": "b" * 1500}
    first = (await served.post(PATH, {"input": [junk], "max_output_tokens": 2})).body
    answer = await served.post(PATH, {"input": [junk], "previous_response_id": first["id"]})
    check(answer, 413, "previous_response_id", "longer than the 2000 bytes")
    assert (await served.post(PATH, {"input": "a", "previous_response_id": first["id"]})).status == 200


def test_a_conversation_takes_of_the_memory_of_bodies() -> None:
    budget = BodyBudget(10 * LARGE_BYTES, shared=False)
    body = IncomingBody(b"{}", budget.begin)
    body.replace(bytes(3 * LARGE_BYTES))
    assert (body.large, budget.used, budget.waiting.total()) == (True, 3 * LARGE_BYTES, 3 * LARGE_BYTES)
    with pytest.raises(RequestError, match="no memory for more bodies"):
        IncomingBody(b"{}", budget.begin).replace(bytes(3 * LARGE_BYTES))
    body.forget()
    assert (budget.used, budget.waiting.total()) == (0, 0)
