"""How long a request may wait for a slot: the server's default, and what OpenAI's clients tell of their own."""

import pytest

from jaxinfer.engine.types import FinishReason
from jaxinfer.serving.deadline import client_timeout, max_wait
from tests.server.conftest import Served
from tests.server.openai_error import check


@pytest.mark.parametrize(
    ("headers", "default", "seconds"),
    [
        ({}, 20.0, 20.0),
        ({}, 0.0, None),
        ({"X-Stainless-Timeout": "5"}, 20.0, 5.0),
        ({"X-Stainless-Read-Timeout": "5.5"}, 0.0, 5.5),
        ({"X-Stainless-Read-Timeout": "600", "X-Stainless-Timeout": "8"}, 20.0, 8.0),
        ({"X-Stainless-Timeout": "600"}, 20.0, 20.0),
        *(
            ({"X-Stainless-Timeout": wrong}, 20.0, 20.0)
            for wrong in ("NOT_GIVEN", "", "-1", "0", "nan", "inf", "1e999")
        ),
    ],
)
def test_the_least_of_what_is_told(headers: dict[str, str], default: float, seconds: float | None) -> None:
    assert max_wait(client_timeout(headers), default) == seconds


async def test_it_reaches_the_engine(serve) -> None:
    served: Served = await serve(default_deadline=7.0)
    for headers in ({}, {"X-Stainless-Timeout": "3"}):
        assert (await served.post("/v1/completions", {"prompt": "a"}, headers=headers)).status == 200
    await served.client.with_options(timeout=2.5).completions.create(model="default", prompt="a")
    assert [request.max_wait for request in served.engine.submitted] == [7.0, 3.0, 2.5]
    assert {request.max_expected_wait for request in served.engine.submitted} == {7.0}


async def test_of_several_prompts_the_first_alone_has_a_deadline(serve) -> None:
    """One that is late would end the others, which may be done."""
    served: Served = await serve(default_deadline=7.0)
    assert (await served.post("/v1/completions", {"prompt": ["a", "b", "c"]})).status == 200
    waits = [(request.max_wait, request.max_expected_wait) for request in served.engine.submitted]
    assert waits == [(7.0, 7.0), (None, None), (None, None)]


async def test_who_has_waited_too_long_is_told_when_to_come_back(serve) -> None:
    served: Served = await serve()
    served.engine.end_at_once = FinishReason.TIMEOUT
    answer = await served.post("/v1/completions", {"prompt": "a"})
    check(answer, 429, None, "no slot was free in time")
    assert (answer.body["error"]["code"], answer.headers["Retry-After"]) == ("queue_timeout", "1")


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_a_stream_that_has_not_begun_is_answered_the_same(serve, path: str) -> None:
    served: Served = await serve()
    served.engine.end_at_once = FinishReason.TIMEOUT
    body = {"prompt": "a"} if path == "completions" else {"messages": [{"role": "user", "content": "a"}]}
    answer = await served.post(f"/v1/{path}", {**body, "stream": True})
    check(answer, 429, None, "no slot was free in time")
    assert answer.headers["Retry-After"] == "1"


async def test_a_stream_with_a_comment_ends_with_the_same_error(serve) -> None:
    served: Served = await serve(sse_keep_alive_interval=0.005)
    served.engine.gate.clear()
    async with served.session.post(f"{served.url}/v1/completions", json={"prompt": "a", "stream": True}) as response:
        assert await response.content.readline() == b": keep-alive\n"
        served.engine.end_all(FinishReason.TIMEOUT)
        rest = (await response.content.read()).decode()
    assert "no slot was free in time; try again in 1 s" in rest
    assert "[DONE]" not in rest


@pytest.mark.parametrize("stream", [False, True])
async def test_who_waits_too_long_for_a_compiler_is_told_when_to_come_back(serve, stream: bool) -> None:
    served: Served = await serve(default_deadline=0.05)
    served.engine.compiled.clear()
    answer = await served.post("/v1/completions", {"prompt": "a", "stream": stream})
    check(answer, 429, None, "the grammar was not compiled in time")
    assert (answer.body["error"]["code"], answer.headers["Retry-After"]) == ("queue_timeout", "1")
    assert not served.engine.submitted
