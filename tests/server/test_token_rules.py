"""`allowed_token_ids` and `bad_words` on their way to the engine, which gets token ids."""

from typing import Any

import pytest

from jaxinfer.sampling import SamplingParams
from jaxinfer.serving.bodies.structure import LARGE_BYTES
from tests.server.conftest import Served
from tests.server.conversation import CHAT

RULES = {"allowed_token_ids": [5, 70, 6], "bad_words": ["w", "hello"]}


def bodies(**more: Any) -> dict[str, dict[str, Any]]:
    return {
        "/v1/completions": {"prompt": "a", **more},
        "/v1/chat/completions": {"messages": CHAT, **more},
    }


@pytest.mark.parametrize("path", bodies())
async def test_they_reach_the_engine_as_token_ids(serve, path: str) -> None:
    served: Served = await serve()
    assert (await served.post(path, bodies(**RULES)[path])).status == 200
    (request,) = served.engine.submitted
    check(served, request.sampling)


def check(served: Served, params: SamplingParams) -> None:
    tokenizer = served.engine.tokenizer
    assert params.allowed_token_ids == (5, 70, 6)
    assert params.bad_words == ("w", "hello")
    expected = {tokenizer.token_to_id(name) for name in ("w", "\u0120w", "hello")}
    assert {ids for (ids,) in params.bad_token_ids} == expected


async def test_of_a_body_that_a_worker_reads_and_for_each_of_several_prompts(serve) -> None:
    served: Served = await serve()
    long = {"prompt": ["a", "b " * (LARGE_BYTES // 2)], "truncate_prompt_tokens": 5, **RULES}
    assert (await served.post("/v1/completions", long)).status == 200
    assert len(served.engine.submitted) == 2
    for request in served.engine.submitted:
        check(served, request.sampling)


async def test_one_string_is_one_word_and_nothing_asks_for_nothing(serve) -> None:
    served: Served = await serve()
    for value, words in (("hello", ("hello",)), ([], ()), (None, ())):
        assert (await served.post("/v1/completions", {"prompt": "a", "bad_words": value})).status == 200
        assert served.engine.submitted[-1].sampling.bad_words == words
    assert (await served.post("/v1/completions", {"prompt": "a", "allowed_token_ids": []})).status == 200
    assert served.engine.submitted[-1].sampling == SamplingParams(max_tokens=16)
