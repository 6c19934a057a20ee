"""Fields that the API does not know: what clients send that were written for other servers."""

import logging
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.serving.bodies.unknown_fields import MAX_LISTED, MAX_LOGGED, MAX_NAME_CHARS, UnknownFields
from tests.server.conftest import Served
from tests.server.conversation import CHAT, TEMPLATE, WEATHER
from tests.server.openai_error import check
from tests.text.folders import byte_level_folder

HEADER = "X-Ignored-Fields"
OPEN_WEBUI = {"repeat_penalty": 1.5, "num_ctx": 4096, "keep_alive": "5m", "mirostat": 0}
LLAMA_CPP = {"n_predict": 3, "cache_prompt": True, "slot_id": -1, "samplers": ["top_k"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model", chat_template=TEMPLATE)


async def test_fields_of_other_servers_pass_and_are_reported(serve, caplog) -> None:
    served: Served = await serve()
    with caplog.at_level(logging.WARNING, logger="jaxinfer.server"):
        for _ in range(2):
            answer = await served.post("/v1/chat/completions", {"messages": CHAT, **OPEN_WEBUI})
            assert answer.status == 200
            assert answer.headers[HEADER] == "num_ctx, keep_alive, mirostat"
    assert sum("keep_alive" in record.getMessage() for record in caplog.records) == 1
    assert served.engine.submitted[0].sampling.repetition_penalty == 1.5


async def test_names_that_mean_one_of_ours_are_renamed(serve) -> None:
    served: Served = await serve()
    answer = await served.post("/v1/completions", {"prompt": "a", **LLAMA_CPP})
    assert answer.headers[HEADER] == "cache_prompt, slot_id, samplers"
    assert served.engine.submitted[0].sampling.max_tokens == 3
    both = await served.post("/v1/completions", {"prompt": "a", "n_predict": 3, "max_tokens": 5})
    assert both.headers[HEADER] == "n_predict"
    assert served.engine.submitted[1].sampling.max_tokens == 5
    await served.post("/v1/chat/completions", {"messages": CHAT, "n_predict": -1})
    assert served.engine.submitted[2].sampling.max_tokens is None
    check(await served.post("/v1/completions", {"prompt": "a", "repeat_penalty": 99}), 400, "repetition_penalty")
    null = {"prompt": "a", "n_predict": 4, "max_tokens": None}
    assert HEADER not in (await served.post("/v1/completions", null)).headers
    assert served.engine.submitted[3].sampling.max_tokens == 4
    newer = {"messages": CHAT, "n_predict": 4, "max_completion_tokens": 7}
    assert (await served.post("/v1/chat/completions", newer)).headers[HEADER] == "n_predict"
    assert served.engine.submitted[4].sampling.max_tokens == 7
    assert (await served.post("/tokenize", {"prompt": "a", "n_predict": 4})).headers[HEADER] == "n_predict"


async def test_streams_have_the_header_too(serve) -> None:
    served: Served = await serve()
    body = {"prompt": "a", "stream": True, "num_ctx": 1}
    async with served.session.post(served.url + "/v1/completions", json=body) as response:
        assert response.headers[HEADER] == "num_ctx"
        assert b"[DONE]" in await response.read()


async def test_null_is_absence_and_known_fields_are_not_reported(serve) -> None:
    served: Served = await serve()
    answer = await served.post("/v1/completions", {"prompt": "a", "num_ctx": None, "user": "me"})
    assert HEADER not in answer.headers


async def test_refuse_names_the_field(serve) -> None:
    served: Served = await serve(unknown_fields="refuse")
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": CHAT})):
        check(await served.post(path, {**body, "temprature": 1}), 400, "temprature", "is not a known field")
        assert (await served.post(path, {**body, "repeat_penalty": 1.1})).status == 200
    check(await served.post("/v1/completions", {"prompt": "a", "priority": 1}), 400, "priority", "no effect")
    assert len(served.engine.submitted) == 2


async def test_ignore_says_nothing(serve, caplog) -> None:
    served: Served = await serve(unknown_fields="ignore")
    answer = await served.post("/v1/completions", {"prompt": "a", "temprature": 1})
    assert (answer.status, HEADER in answer.headers, caplog.records) == (200, False, [])


async def test_a_field_that_is_known_and_cannot_be_honoured_stays_an_error(serve) -> None:
    served: Served = await serve()
    body = {"messages": CHAT, "num_ctx": 1, "functions": [{"name": "f"}]}
    check(await served.post("/v1/chat/completions", body), 400, "functions", "not supported")
    check(await served.post("/v1/chat/completions", {"messages": CHAT, "num_ctx": 1, "n": "x"}), 400, "n", "must be ")


async def test_a_hostile_name_does_not_reach_header_or_log(serve, caplog) -> None:
    served: Served = await serve()
    names = ["a\r\nSet-Cookie: x=1", "b" * 10_000, "ünïcode", "with, comma", *(f"f{i}" for i in range(40))]
    with caplog.at_level(logging.WARNING, logger="jaxinfer.server"):
        answer = await served.post("/v1/completions", {"prompt": "a", **dict.fromkeys(names, 1)})
    assert answer.status == 200
    assert "Set-Cookie" not in answer.headers
    listed = answer.headers[HEADER].split(", ")
    assert len(listed) == MAX_LISTED + 1
    assert listed[-1] == f"and {len(names) - MAX_LISTED} more"
    assert listed[0] == "a??Set-Cookie:?x=1"
    assert listed[2:4] == ["?n?code", "with??comma"]
    assert all(len(name) <= MAX_NAME_CHARS and name.isascii() and name.isprintable() for name in listed)
    assert all("\n" not in record.getMessage() for record in caplog.records)


async def test_a_body_of_very_many_fields_is_refused(serve) -> None:
    served: Served = await serve()
    answer = await served.post("/v1/completions", {"prompt": "a", **{f"f{i}": 1 for i in range(600)}})
    check(answer, 400, None, "601 fields", "at most 512")


def test_the_names_that_are_logged_are_bounded(caplog) -> None:
    fields = UnknownFields("warn")
    for i in range(MAX_LOGGED + 50):
        assert fields.report([f"f{i}"]) == [f"f{i}"]
    assert len(caplog.records) == MAX_LOGGED


async def test_keys_that_other_libraries_add_to_objects_are_ignored(serve) -> None:
    """litellm, openai-python's parse helper, OpenRouter, Anthropic's cache marks, agents' timestamps."""
    served: Served = await serve()
    served.engine.info = served.engine.info._replace(max_model_len=2048)
    function = {"name": "get_weather", "arguments": '{"city": "Bern"}', "parsed_arguments": {"city": "Bern"}}
    call = {"id": "c", "type": "function", "index": 0, "function": function, "provider_specific_fields": {"a": 1}}
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    messages: list[Any] = [
        {"role": "user", "content": [part], "id": "m1", "timestamp": 17},
        {
            "role": "assistant", "content": None, "tool_calls": [call], "provider_specific_fields": {"x": 1},
            "parsed": None, "reasoning_details": [{"type": "reasoning.text"}], "thinking_blocks": [{"thinking": "x"}],
            "annotations": [{"type": "url_citation"}], "refusal": None, "audio": None, "function_call": None,
        },
        {"role": "tool", "tool_call_id": "c", "content": "sunny", "cache_control": {"type": "ephemeral"}},
    ]  # fmt: skip
    tools = [{**WEATHER, "cache_control": {"type": "ephemeral"}, "function": {**WEATHER["function"], "strict": True}}]
    body = {
        "messages": messages,
        "tools": tools,
        "stream_options": {"include_usage": True, "include_obfuscation": False},
    }
    async with served.session.post(served.url + "/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status == 200, await response.text()
        assert HEADER not in response.headers
        assert b"[DONE]" in await response.read()
    sent = served.engine.tokenizer.decode(served.engine.submitted[0].prompt_token_ids, skip_special_tokens=False)
    assert "<|user|>hi<|end|>" in sent
    assert '{"city": "Bern"}' in sent
    assert "cache_control" not in sent
    assert "provider_specific_fields" not in sent


async def test_a_priority_under_another_policy_is_accepted_and_reported(serve) -> None:
    served: Served = await serve()
    answer = await served.post("/v1/completions", {"prompt": "a", "priority": 5})
    assert (answer.status, answer.headers[HEADER]) == (200, "priority")
    assert served.engine.submitted[0].priority == 0  # which every engine takes
    served.engine.info = served.engine.info._replace(scheduling_policy="priority")
    assert HEADER not in (await served.post("/v1/completions", {"prompt": "a", "priority": 5})).headers


async def test_tokenize_follows_the_policy(serve) -> None:
    served: Served = await serve()
    assert (await served.post("/tokenize", {"prompt": "a", "add_special": True})).headers[HEADER] == "add_special"
    check(await served.post("/tokenize", {"messages": CHAT, "chat_template": "x"}), 400, "chat_template")
    strict: Served = await serve(unknown_fields="refuse")
    check(await strict.post("/detokenize", {"tokens": [], "x": 1}), 400, "x", "is not a known field")
