"""The real openai package against the server: whole replies, streams, usage, log-probabilities."""

import asyncio
import threading
from typing import Any

import openai
import pytest

from tests.server.conftest import Served
from tests.server.conversation import CHAT


@pytest.mark.smoke
async def test_chat_whole(serve) -> None:
    served: Served = await serve()
    reply = await served.client.chat.completions.create(model="fake", messages=CHAT)
    assert reply.object == "chat.completion"
    assert (reply.choices[0].message.role, reply.choices[0].message.content) == ("assistant", "hello world")
    assert reply.choices[0].finish_reason == "stop"
    tokenizer = served.engine.tokenizer
    sent = tokenizer.decode(served.engine.submitted[0].prompt_token_ids, skip_special_tokens=False)
    assert sent == "<|user|>hi<|end|><|assistant|>"
    assert reply.usage is not None
    expected = len(tokenizer.encode("hello world", add_special_tokens=False)) + 1
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (5, expected)
    assert reply.usage.total_tokens == 5 + expected


@pytest.mark.smoke
async def test_chat_stream_joins_to_the_whole_reply(serve) -> None:
    served: Served = await serve()
    served.engine.reply = "hello 😀 world"
    stream = await served.client.chat.completions.create(
        model="fake", messages=CHAT, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == "hello 😀 world"
    assert len([piece for piece in pieces if piece]) > 3
    assert not any("\ufffd" in piece for piece in pieces)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


async def test_the_blocking_client_works_too(serve) -> None:
    served: Served = await serve()

    def ask() -> str | None:
        with openai.OpenAI(base_url=served.url + "/v1", api_key="none") as client:
            return client.chat.completions.create(model="fake", messages=CHAT).choices[0].message.content

    assert await asyncio.to_thread(ask) == "hello world"


async def test_continuous_usage_counts_up_to_the_last(serve) -> None:
    served: Served = await serve()
    stream = await served.client.completions.create(
        model="fake", prompt="a", stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )  # fmt: skip
    counts = [chunk.usage.completion_tokens async for chunk in stream]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == len(served.engine.tokenizer.encode("hello world")) + 1


@pytest.mark.parametrize(
    ("prompt", "token_lists"),
    [("hello", [[260]]), (["a", "b"], None), ([65, 66], [[65, 66]]), ([[65], [66, 67]], [[65], [66, 67]])],
)
async def test_completions_take_texts_and_token_ids(serve, prompt, token_lists) -> None:
    served: Served = await serve()
    encode = served.engine.tokenizer.encode
    if token_lists is None:
        token_lists = [encode(text) for text in prompt]
    elif isinstance(prompt, str):
        token_lists = [encode(prompt)]
    reply = await served.client.completions.create(model="fake", prompt=prompt, max_tokens=3, n=2)
    assert [list(request.prompt_token_ids) for request in served.engine.submitted] == token_lists
    assert [choice.index for choice in reply.choices] == list(range(2 * len(token_lists)))
    assert {choice.finish_reason for choice in reply.choices} == {"length"}
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == sum(map(len, token_lists))
    assert reply.usage.completion_tokens == 3 * 2 * len(token_lists)


async def test_prompts_and_choices_are_numbered_apart_in_a_stream(serve) -> None:
    served: Served = await serve()
    served.engine.reply = lambda request, index: f"p{request.prompt_token_ids[0]}c{index}"
    stream = await served.client.completions.create(model="fake", prompt=[[65], [66]], n=2, stream=True)
    texts: dict[int, str] = {}
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {0: "p65c0", 1: "p65c1", 2: "p66c0", 3: "p66c1"}


async def test_chat_logprobs(serve) -> None:
    served: Served = await serve()
    reply = await served.client.chat.completions.create(
        model="fake", messages=CHAT, logprobs=True, top_logprobs=2, max_tokens=1
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    entry = logprobs.content[0]
    assert (entry.token, entry.logprob, bytes(entry.bytes or [])) == ("hello", -0.25, b"hello")
    assert [top.logprob for top in entry.top_logprobs] == [-0.25, -2.0]
    assert served.engine.submitted[0].sampling.logprobs == 2


async def test_completion_logprobs_and_their_offsets(serve) -> None:
    served: Served = await serve()
    reply = await served.client.completions.create(model="fake", prompt="a", logprobs=1, max_tokens=2)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert (logprobs.tokens, logprobs.text_offset) == (["hello", " w"], [0, 5])
    assert logprobs.top_logprobs == [{"hello": -0.25}, {" w": -0.25}]


async def test_half_a_character_has_a_name_in_logprobs(serve) -> None:
    served: Served = await serve()
    served.engine.reply = "é"
    reply = await served.client.completions.create(model="fake", prompt="a", logprobs=0, max_tokens=2)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["bytes:\\xc3", "bytes:\\xa9"]


async def test_offsets_are_those_of_the_text_where_characters_span_tokens(serve) -> None:
    served: Served = await serve()
    served.engine.reply = "é<|user|>hello 😀 w"
    for skip in (True, False):
        body = {"prompt": "a", "logprobs": 0, "max_tokens": 20, "skip_special_tokens": skip}
        choice = (await served.post("/v1/completions", body)).body["choices"][0]
        tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
        assert len(tokens) == len(offsets) == 11
        for token, offset in zip(tokens[:-1], offsets[:-1], strict=True):  # the last one ends the text and is hidden
            whole = not token.startswith("bytes:") and not (skip and token.startswith("<|"))
            assert not whole or choice["text"][offset:].startswith(token)
        assert ("<|user|>" in choice["text"]) is not skip


async def test_a_stop_token_with_the_id_0_is_told(serve) -> None:
    served: Served = await serve()
    served.engine.stop_token = 0
    for path, body in (("completions", {"prompt": "a"}), ("chat/completions", {"messages": CHAT})):
        answer = await served.post(f"/v1/{path}", {**body, "stop_token_ids": [0]})
        assert answer.body["choices"][0]["stop_reason"] == 0


async def test_prompt_logprobs(serve) -> None:
    served: Served = await serve()
    status, body, _ = await served.post("/v1/completions", {"prompt": [65, 66], "prompt_logprobs": 1, "max_tokens": 1})
    assert status == 200
    name = served.engine.tokenizer.token_text
    assert body["choices"][0]["prompt_logprobs"] == [
        None,
        {
            "66": {"logprob": -1.5, "rank": 3, "decoded_token": name(66)},
            "0": {"logprob": -0.5, "rank": 1, "decoded_token": name(0)},
        },
    ]


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_logprobs_of_a_prompt_are_written_off_the_event_loop(
    serve, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    served: Served = await serve()
    threads = []
    name = served.engine.tokenizer.token_text

    def seen(token_id: int) -> str:
        threads.append(threading.current_thread())
        return name(token_id)

    monkeypatch.setattr("jaxinfer.text.Tokenizer.token_text", lambda _, token_id: seen(token_id))
    body = {"prompt": [65, 66]} if path == "completions" else {"messages": CHAT}
    assert (await served.post(f"/v1/{path}", {**body, "prompt_logprobs": 1, "max_tokens": 1})).status == 200
    assert threads
    assert threading.main_thread() not in threads


async def test_cached_tokens_are_told(serve) -> None:
    served: Served = await serve()
    served.engine.cached_tokens = 4
    reply = await served.client.chat.completions.create(model="fake", messages=CHAT)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_choice_and_counts_kept_tokens(serve, stream: bool) -> None:
    served: Served = await serve()
    served.engine.reply = "one STOP two three four"
    body = {"prompt": "a", "stop": ["STOP"], "max_tokens": 100}
    if stream:
        chunks = [c async for c in await served.client.completions.create(model="fake", stream=True, **body)]
        text, reason = "".join(c.choices[0].text for c in chunks), chunks[-1].choices[0].finish_reason
    else:
        reply = await served.client.completions.create(model="fake", **body)
        text, reason = reply.choices[0].text, reply.choices[0].finish_reason
        assert reply.usage is not None
        assert reply.usage.completion_tokens == len(served.engine.tokenizer.encode("one STOP"))
        assert reply.choices[0].stop_reason == "STOP"
    assert (text, reason) == ("one ", "stop")
    request_id = served.engine.submitted[0].request_id
    assert served.engine.stopped == [(request_id, 0)]
    assert served.engine.active == set()
    assert served.engine.aborted == []


async def test_models(serve) -> None:
    served: Served = await serve(served_model_name="org/name")
    assert [model.id async for model in served.client.models.list()] == ["org/name"]
    assert (await served.client.models.retrieve("org/name")).id == "org/name"
    with pytest.raises(openai.NotFoundError) as error:
        await served.client.chat.completions.create(model="other", messages=CHAT)
    assert (error.value.code, error.value.param) == ("model_not_found", "model")


async def test_a_model_may_have_several_names(serve) -> None:
    served: Served = await serve(served_model_name=("first", "org/second"))
    assert [model.id async for model in served.client.models.list()] == ["first", "org/second"]
    assert (await served.client.models.retrieve("org/second")).id == "org/second"
    for name in ("first", "org/second", "default"):
        reply = await served.client.chat.completions.create(model=name, messages=CHAT, max_tokens=2)
        assert reply.model == "first"
    with pytest.raises(openai.NotFoundError, match="'third' is not served here; 'first', 'org/second' are"):
        await served.client.chat.completions.create(model="third", messages=CHAT)


async def test_top_p_of_zero_is_greedy(serve) -> None:
    served: Served = await serve()
    await served.client.chat.completions.create(model="fake", messages=CHAT, top_p=0, max_tokens=2)
    sampling = served.engine.submitted[0].sampling
    assert (sampling.greedy, sampling.temperature, sampling.top_p) == (True, 0.0, 1.0)


async def test_a_history_with_broken_arguments_and_refusals_is_answered(serve) -> None:
    served: Served = await serve()
    call: Any = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Par'}}
    messages: list[Any] = [
        *CHAT,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "error: no JSON"},
        {"role": "assistant", "content": None, "refusal": "I can't."},
        {"role": "user", "content": [{"type": "text", "text": "go on"}]},
    ]
    reply = await served.client.chat.completions.create(model="fake", messages=messages, max_tokens=2)
    assert reply.choices[0].finish_reason
    sent = served.engine.tokenizer.decode(served.engine.submitted[0].prompt_token_ids, skip_special_tokens=False)
    assert "I can't." in sent


async def test_the_parts_of_a_message_are_joined(serve) -> None:
    served: Served = await serve()
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": content}]
    await served.client.chat.completions.create(model="fake", messages=messages)
    sent = served.engine.tokenizer.decode(served.engine.submitted[0].prompt_token_ids, skip_special_tokens=False)
    assert sent == "<|system|>be brief<|end|><|user|>a\nb<|end|><|assistant|>"
