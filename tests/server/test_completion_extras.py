"""echo, best_of, ids of tokens and requests, truncation: what /v1/completions offers beside the text."""

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.material import material
from tests.server.conftest import Served
from tests.server.conversation import CHAT
from tests.server.openai_error import check


async def test_echo_begins_every_choice_with_the_prompt(serve) -> None:
    served: Served = await serve()
    reply = await served.client.completions.create(model="fake", prompt=["hello", "well "], n=2, echo=True)
    assert [choice.text for choice in reply.choices] == ["hellohello world"] * 2 + ["well hello world"] * 2


async def test_echo_in_a_stream_joins_to_the_whole(serve) -> None:
    served: Served = await serve()
    options: dict[str, Any] = {"prompt": "hello", "echo": True, "logprobs": 1, "n": 2}
    whole = await served.client.completions.create(model="fake", **options)
    stream = await served.client.completions.create(model="fake", stream=True, **options)
    texts, tokens, offsets = ["", ""], [[], []], [[], []]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.logprobs is not None:
                tokens[choice.index] += choice.logprobs.tokens
                offsets[choice.index] += choice.logprobs.text_offset
    for choice in whole.choices:
        assert texts[choice.index] == choice.text == "hellohello world"
        assert tokens[choice.index] == choice.logprobs.tokens
        assert offsets[choice.index] == choice.logprobs.text_offset


async def test_echo_of_token_ids_is_their_text(serve) -> None:
    served: Served = await serve()
    ids = served.engine.tokenizer.encode("well", add_special_tokens=False)
    reply = await served.client.completions.create(model="fake", prompt=ids, echo=True)
    assert reply.choices[0].text == "wellhello world"


async def test_echo_with_logprobs_covers_the_prompt_as_evaluation_harnesses_need(serve) -> None:
    served: Served = await serve()
    ids = served.engine.tokenizer.encode("hello world", add_special_tokens=False)
    answer = await served.post("/v1/completions", {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 0})
    choice, usage = answer.body["choices"][0], answer.body["usage"]
    assert choice["text"] == "hello world"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == [served.engine.tokenizer.token_text(token) for token in ids]
    assert choice["logprobs"]["token_logprobs"] == [None] + [-1.5] * (len(ids) - 1)
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["logprobs"]["text_offset"] == [0, *_ends(choice["logprobs"]["tokens"])[:-1]]
    assert (usage["completion_tokens"], usage["total_tokens"]) == (0, len(ids))
    assert choice["prompt_logprobs"] is None


def _ends(tokens: list[str]) -> list[int]:
    return [sum(map(len, tokens[: i + 1])) for i in range(len(tokens))]


async def test_no_tokens_are_made_without_an_echo(serve) -> None:
    served: Served = await serve()
    check(await served.post("/v1/completions", {"prompt": "a", "max_tokens": 0}), 400, "max_tokens")
    both = {"prompt": "a", "echo": True, "logprobs": 1, "prompt_logprobs": 2}
    check(await served.post("/v1/completions", both), 400, "prompt_logprobs", "echo")


async def test_best_of_returns_the_likeliest(serve) -> None:
    served: Served = await serve()
    served.engine.reply = lambda request, index: f"reply {index}"
    served.engine.logprob = lambda index: [-3.0, -1.0, -2.0, -0.5][index]
    reply = await served.client.completions.create(model="fake", prompt=["a", "b"], n=2, best_of=4)
    assert [(choice.index, choice.text) for choice in reply.choices] == [
        (0, "reply 3"), (1, "reply 1"), (2, "reply 3"), (3, "reply 1"),
    ]  # fmt: skip
    assert all(choice.logprobs is None for choice in reply.choices)
    made = 2 * 4 * (len(served.engine.tokenizer.encode("reply 0", add_special_tokens=False)) + 1)
    assert reply.usage.completion_tokens == made


async def test_best_of_is_checked(serve) -> None:
    served: Served = await serve()
    path = "/v1/completions"
    check(await served.post(path, {"prompt": "a", "n": 3, "best_of": 2}), 400, "best_of", "less than n")
    check(await served.post(path, {"prompt": "a", "best_of": 2, "stream": True}), 400, "best_of", "stream")
    check(await served.post(path, {"prompt": "a", "best_of": 129}), 400, "best_of", "129")


async def test_ids_of_tokens_come_where_they_are_asked_for(serve) -> None:
    served: Served = await serve()
    encode = served.engine.tokenizer.encode
    made = [*encode("hello world", add_special_tokens=False), served.engine.tokenizer.eos_token_id]
    answer = await served.post("/v1/completions", {"prompt": [65, 66], "return_token_ids": True})
    assert answer.body["choices"][0]["token_ids"] == made
    assert answer.body["choices"][0]["prompt_token_ids"] == [65, 66]
    chat = await served.post("/v1/chat/completions", {"messages": CHAT, "return_token_ids": True})
    assert chat.body["choices"][0]["token_ids"] == made
    assert chat.body["prompt_token_ids"] == list(served.engine.submitted[1].prompt_token_ids)
    plain = await served.post("/v1/completions", {"prompt": [65, 66]})
    assert plain.body["choices"][0]["token_ids"] is None


async def test_ids_of_tokens_in_streams(serve) -> None:
    served: Served = await serve()
    made = [*served.engine.tokenizer.encode("hello world", add_special_tokens=False), 264]
    stream = await served.client.chat.completions.create(
        model="fake", messages=CHAT, stream=True, extra_body={"return_token_ids": True}
    )
    chunks = [chunk.model_dump() async for chunk in stream]
    assert [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids") or ()] == made
    assert [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk] == [
        list(served.engine.submitted[0].prompt_token_ids)
    ]


async def test_tokens_are_called_by_their_ids_where_that_is_asked_for(serve) -> None:
    served: Served = await serve()
    body = {"prompt": "a", "logprobs": 1, "return_tokens_as_token_ids": True}
    first = (await served.post("/v1/completions", body)).body["choices"][0]["logprobs"]
    ids = served.engine.tokenizer.encode("hello world", add_special_tokens=False)
    assert first["tokens"][:-1] == [f"token_id:{token}" for token in ids]


async def test_a_prompt_is_cut_to_its_end(serve) -> None:
    served: Served = await serve()
    for prompt in ([65, 66, 67], "ABC"):
        body = {"prompt": prompt, "truncate_prompt_tokens": 2, "echo": True}
        assert (await served.post("/v1/completions", body)).body["choices"][0][
            "text"
        ] == "BChello world" or prompt != "ABC"
    assert [len(request.prompt_token_ids) for request in served.engine.submitted] == [2, 2]
    long = {"prompt": [65] * 1000, "truncate_prompt_tokens": 3}
    assert (await served.post("/v1/completions", long)).status == 200
    chat = {"messages": CHAT, "truncate_prompt_tokens": 1}
    assert (await served.post("/v1/chat/completions", chat)).body["usage"]["prompt_tokens"] == 1
    check(
        await served.post("/v1/completions", {"prompt": "a", "truncate_prompt_tokens": 0}),
        400,
        "truncate_prompt_tokens",
    )


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_request_can_have_a_name(serve, path: str) -> None:
    served: Served = await serve()
    body = {"prompt": "a"} if path == "/v1/completions" else {"messages": CHAT}
    kind = "cmpl" if path == "/v1/completions" else "chatcmpl"
    named = await served.post(path, {**body, "request_id": "job-1/a"})
    assert (named.body["id"], named.headers["X-Request-Id"]) == (f"{kind}-job-1/a", "job-1/a")
    header = await served.post(path, body, headers={"X-Request-Id": "trace:7"})
    assert (header.body["id"], header.headers["X-Request-Id"]) == (f"{kind}-trace:7", "trace:7")
    silent = await served.post(path, body)
    assert silent.body["id"] == f"{kind}-{silent.headers['X-Request-Id']}"
    check(await served.post(path, {**body, "request_id": "a b"}), 400, "request_id")
    check(await served.post(path, body, headers={"X-Request-Id": "a" * 129}), 400, "X-Request-Id")


async def test_one_name_twice_at_once_is_no_trouble(serve) -> None:
    served: Served = await serve(sse_keep_alive_interval=0.01)
    served.engine.gate.clear()
    stream = await served.client.completions.create(
        model="fake", prompt="a", stream=True, extra_body={"request_id": "same"}
    )
    served.engine.gate.set()
    assert (await served.post("/v1/completions", {"prompt": "a", "request_id": "same"})).status == 200
    assert len([chunk async for chunk in stream]) > 1


async def test_log_probabilities_of_a_reply_are_bounded(serve) -> None:
    served: Served = await serve(max_logprob_entries=100)
    body = {"prompt": "a", "max_tokens": 50, "logprobs": 1}
    assert (await served.post("/v1/completions", body)).status == 200
    check(await served.post("/v1/completions", {**body, "n": 2}), 400, "logprobs", "200", "100")
    with pytest.raises(openai.BadRequestError, match="log-probabilities"):
        await served.client.chat.completions.create(model="fake", messages=CHAT, logprobs=True, top_logprobs=5)  # pyright: ignore[reportArgumentType]


async def test_offsets_of_a_tokenizer_that_begins_with_a_space(serve, folder: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes(material("models", "stories260K", file).read_bytes())
    served: Served = await serve()
    body = {"prompt": "Once upon", "echo": True, "logprobs": 0, "max_tokens": 0}
    choice = (await served.post("/v1/completions", body)).body["choices"][0]
    assert choice["text"] == "Once upon"
    begins = choice["logprobs"]["text_offset"]
    assert begins[0] == 0
    for at, token in list(zip(begins, choice["logprobs"]["tokens"], strict=True))[2:]:
        assert choice["text"][at:].startswith(token.strip() if at == 0 else token)


async def test_the_prompt_of_every_choice_is_counted(serve) -> None:
    served: Served = await serve(max_logprob_entries=1000)
    many = {"prompt": [65] * 200, "n": 6, "max_tokens": 1, "echo": True, "logprobs": 0}
    check(await served.post("/v1/completions", many), 400, "logprobs", "1206")
    assert (await served.post("/v1/completions", {**many, "n": 4})).status == 200


async def test_a_name_comes_back_with_errors_too(serve) -> None:
    served: Served = await serve(api_key="secret")
    named = {"X-Request-Id": "mine"}
    for body in ({"prompt": "a"}, {"nothing": 1}):
        answer = await served.post("/v1/completions", body, headers=named)
        assert (answer.status, answer.headers["X-Request-Id"]) == (401, "mine")
    wrong = await served.post("/v1/completions", {}, headers={**named, "Authorization": "Bearer secret"})
    assert (wrong.status, wrong.headers["X-Request-Id"]) == (400, "mine")
