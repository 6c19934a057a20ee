"""vLLM's own parameters and keys: what its clients send beside OpenAI's, and look for in answers."""

from pathlib import Path

import msgspec
import pytest

from jaxinfer.serving.bodies.chat_schema import ChatBody, TokenizeBody
from jaxinfer.serving.bodies.schema import CompletionBody
from jaxinfer.serving.bodies.structure import LARGE_BYTES
from tests.server.conftest import Served
from tests.server.conversation import CHAT, TEMPLATE, WEATHER
from tests.server.openai_error import check
from tests.text.folders import byte_level_folder, with_tokens

ASSISTANT = {"role": "assistant", "content": "An apple a day"}

NEUTRAL = {
    "include_reasoning": True, "truncation_side": None, "truncate_prompt_tokens": None, "logprob_token_ids": None,
    "return_token_offsets": False, "allowed_token_ids": None, "bad_words": [], "documents": None, "priority": 0,
    "length_penalty": 1.0, "spaces_between_special_tokens": True, "use_beam_search": False, "min_tokens": 0,
    "kv_transfer_params": None, "vllm_xargs": None, "media_io_kwargs": None, "mm_processor_kwargs": None,
    "structured_outputs": None, "return_weight_versions": False, "return_prompt_text": None, "stream_interval": None,
    "mm_payload": "tensors", "routed_experts_prompt_start": 0, "thinking_token_budget": None, "watermarking": None,
    "repetition_detection": None, "ec_transfer_params": None, "session_id": None, "prompt_logprobs": None,
    "response_format": None, "return_tokens_as_token_ids": None, "return_token_ids": None, "top_k": 0, "min_p": 0.0,
    "repetition_penalty": 1.0, "stop_token_ids": [], "ignore_eos": False, "skip_special_tokens": True,
    "include_stop_str_in_output": False, "cache_salt": None, "user": None, "return_mm_kwargs": None,
}  # fmt: skip
"""The fields of vLLM 0.33.0's two requests with their defaults (openai/*/protocol.py there)."""
CHAT_NEUTRAL = {
    "echo": False, "add_generation_prompt": True, "continue_final_message": False, "add_special_tokens": False,
    "chat_template": None, "chat_template_kwargs": None, "reasoning_effort": None, "parallel_tool_calls": True,
    "tool_choice": "none", "tools": None, "logprobs": False, "top_logprobs": 0,
}  # fmt: skip
TOKENIZE_NEUTRAL = {
    "add_generation_prompt": True, "return_token_strs": False, "continue_final_message": False,
    "add_special_tokens": False, "chat_template": None, "chat_template_kwargs": None, "media_io_kwargs": None,
    "mm_processor_kwargs": None, "tools": None,
}  # fmt: skip


async def test_all_fields_with_their_defaults(serve) -> None:
    """As a client sends them that fills in every field that vLLM documents."""
    served: Served = await serve(unknown_fields="refuse")
    completion = {**NEUTRAL, "suffix": None, "echo": False, "add_special_tokens": True, "prompt_embeds": None}
    del completion["include_reasoning"]
    answer = await served.post("/v1/completions", {"prompt": "a", **completion})
    assert answer.status == 200, answer.body
    answer = await served.post("/v1/chat/completions", {"messages": CHAT, **NEUTRAL, **CHAT_NEUTRAL})
    assert answer.status == 200, answer.body
    answer = await served.post("/tokenize", {"messages": CHAT, **TOKENIZE_NEUTRAL})
    assert answer.status == 200, answer.body


def test_each_of_those_fields_is_in_a_schema() -> None:
    assert {*NEUTRAL, *CHAT_NEUTRAL} <= set(ChatBody.__struct_fields__)
    assert {*NEUTRAL} - {"include_reasoning"} <= set(CompletionBody.__struct_fields__)
    assert {*TOKENIZE_NEUTRAL} <= set(TokenizeBody.__struct_fields__)


@pytest.mark.parametrize(("side", "kept"), [(None, [7, 8]), ("left", [7, 8]), ("right", [5, 6])])
async def test_the_side_that_is_cut(serve, side: str | None, kept: list[int]) -> None:
    served: Served = await serve()
    body = {"prompt": [5, 6, 7, 8], "truncate_prompt_tokens": 2, "truncation_side": side}
    assert (await served.post("/v1/completions", body)).status == 200
    assert list(served.engine.submitted[0].prompt_token_ids) == kept
    whole = (await served.post("/tokenize", {"messages": CHAT})).body["tokens"]
    body = {"messages": CHAT, "truncate_prompt_tokens": 2, "truncation_side": side}
    assert (await served.post("/v1/chat/completions", body)).status == 200
    assert list(served.engine.submitted[1].prompt_token_ids) == (whole[:2] if side == "right" else whole[-2:])


async def test_minus_one_keeps_what_leaves_room_for_the_answer(serve) -> None:
    served: Served = await serve()
    body = {"prompt": [5] * 400, "truncate_prompt_tokens": -1, "max_tokens": 56}
    assert (await served.post("/v1/completions", body)).status == 200
    assert len(served.engine.submitted[0].prompt_token_ids) == 200
    check(await served.post("/v1/completions", {**body, "truncate_prompt_tokens": -2}), 400, "truncate_prompt_tokens")


async def test_minus_one_log_probabilities_are_all_that_are_told(serve) -> None:
    served: Served = await serve()
    body = {"messages": CHAT, "logprobs": True, "top_logprobs": -1, "prompt_logprobs": -1, "max_tokens": 2}
    assert (await served.post("/v1/chat/completions", body)).status == 200
    assert served.engine.submitted[0].sampling.logprobs == served.engine.submitted[0].sampling.prompt_logprobs == 20


async def test_every_wrong_key_of_a_bias_is_named(serve) -> None:
    served: Served = await serve()
    body = {"messages": CHAT, "logit_bias": {"first": 1, "5": 1, "second": 1}}
    check(await served.post("/v1/chat/completions", body), 400, "logit_bias", "first", "second")


async def test_keys_that_vllm_sends_as_null(serve) -> None:
    served: Served = await serve()
    whole = (await served.post("/v1/completions", {"prompt": "a"})).body
    assert {"service_tier", "kv_transfer_params", "system_fingerprint"} <= whole.keys()
    nulls = ("logprobs", "stop_reason", "prompt_logprobs", "token_ids", "prompt_token_ids")
    assert [whole["choices"][0][name] for name in nulls] == [None] * 5
    chat = (await served.post("/v1/chat/completions", {"messages": CHAT})).body
    nulls = ("service_tier", "kv_transfer_params", "prompt_logprobs", "prompt_token_ids")
    assert [chat[name] for name in nulls] == [None] * 4
    assert [chat["choices"][0][name] for name in ("logprobs", "stop_reason", "token_ids")] == [None] * 3
    message = chat["choices"][0]["message"]
    nulls = ("refusal", "annotations", "audio", "function_call", "reasoning", "reasoning_content")
    assert [message[name] for name in nulls] == [None] * 6
    assert "tool_calls" not in message


async def test_the_fingerprint_is_the_same_for_the_same_engine(serve) -> None:
    served: Served = await serve()
    first = (await served.post("/v1/completions", {"prompt": "a"})).body["system_fingerprint"]
    assert first == (await served.post("/v1/chat/completions", {"messages": CHAT})).body["system_fingerprint"]
    assert first.startswith("jaxinfer-")
    stream = await served.client.chat.completions.create(model="fake", messages=CHAT, stream=True)
    found = [chunk.system_fingerprint async for chunk in stream]
    assert (found[-1], set(found[:-1])) == (first, {None})


async def test_usage_in_chunks_needs_usage(serve) -> None:
    served: Served = await serve()
    options = {"include_usage": False, "continuous_usage_stats": True}
    body = {"prompt": "a", "stream": True, "stream_options": options}
    async with served.session.post(served.url + "/v1/completions", json=body) as response:
        assert b"usage" not in await response.read()


async def test_usage_in_every_stream_where_the_server_says_so(serve) -> None:
    served: Served = await serve(enable_force_include_usage=True)
    stream = await served.client.completions.create(model="fake", prompt="a", stream=True)
    assert all([chunk.usage is not None async for chunk in stream])


async def test_tokens_by_id_where_the_server_says_so(serve) -> None:
    served: Served = await serve(return_tokens_as_token_ids=True)
    body = {"prompt": "a", "logprobs": 0, "max_tokens": 1}
    tokens = (await served.post("/v1/completions", body)).body["choices"][0]["logprobs"]["tokens"]
    assert tokens[0].startswith("token_id:")
    body["return_tokens_as_token_ids"] = False
    tokens = (await served.post("/v1/completions", body)).body["choices"][0]["logprobs"]["tokens"]
    assert not tokens[0].startswith("token_id:")


@pytest.mark.parametrize("echo", [True, False])
async def test_the_last_message_is_continued(serve, echo: bool) -> None:
    served: Served = await serve()
    body = {"messages": [*CHAT, ASSISTANT], "continue_final_message": True, "echo": echo}
    content = (await served.post("/v1/chat/completions", body)).body["choices"][0]["message"]["content"]
    assert content == "An apple a day" * echo + "hello world"
    sent = served.engine.tokenizer.decode(served.engine.submitted[0].prompt_token_ids, skip_special_tokens=False)
    assert sent == "<|user|>hi<|end|><|assistant|>An apple a day"
    same = {"messages": body["messages"], "continue_final_message": True}
    tokens = (await served.post("/tokenize", same)).body["tokens"]
    assert tokens == list(served.engine.submitted[0].prompt_token_ids)
    async with served.session.post(served.url + "/v1/chat/completions", json={**body, "stream": True}) as response:
        events = [line[6:] for line in (await response.read()).split(b"\n\n") if line.startswith(b"data: {")]
    texts = [msgspec.json.decode(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(texts) == content


async def test_a_template_that_drops_the_last_message_cannot_continue_it(serve, folder: Path) -> None:
    byte_level_folder(folder, chat_template="{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    served: Served = await serve()
    body = {"messages": [*CHAT, ASSISTANT], "continue_final_message": True}
    check(await served.post("/v1/chat/completions", body), 400, "continue_final_message", "leaves out")


async def test_roles_of_the_clients_own(serve, folder: Path) -> None:
    served: Served = await serve()
    body = {"messages": [*CHAT, {"role": "end", "content": "they end"}]}
    assert (await served.post("/v1/chat/completions", body)).status == 200
    sent = served.engine.tokenizer.decode(served.engine.submitted[0].prompt_token_ids, skip_special_tokens=False)
    assert "they end" in sent
    known = "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.content }}{% endif %}{% endfor %}"
    byte_level_folder(folder, chat_template=known)
    deaf: Served = await serve()
    check(await deaf.post("/v1/chat/completions", body), 400, "messages[1].role", "'end'", "not taken")


class TestThinking:
    """Whether the model thinks, by every name that clients have for it."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        effort = "{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}"
        return byte_level_folder(tmp_path / "model", chat_template=effort + TEMPLATE)

    @pytest.mark.parametrize(
        ("given", "thinks", "effort"),
        [
            ({}, False, ""),
            ({"thinking": True}, True, ""),
            ({"thinking": False}, False, ""),
            ({"thinking": {"type": "enabled", "budget_tokens": 5}}, True, ""),
            ({"enable_thinking": True}, True, ""),
            ({"enable_thinking": False}, False, ""),
            ({"reasoning_effort": "none"}, False, ""),
            ({"reasoning_effort": "high"}, True, "[high]"),
            ({"reasoning_effort": "high", "enable_thinking": False}, False, "[high]"),
            ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, False, "[low]"),
        ],
    )
    async def test_all_names(self, serve, given: dict[str, object], thinks: bool, effort: str) -> None:
        served: Served = await serve(unknown_fields="refuse")
        answer = await served.post("/v1/chat/completions", {"messages": CHAT, **given})
        assert answer.status == 200, answer.body
        sent = served.engine.tokenizer.decode(served.engine.submitted[0].prompt_token_ids, skip_special_tokens=False)
        assert sent == f"{effort}<|user|>hi<|end|><|assistant|>" + "<think>\n" * thinks

    async def test_contradictions(self, serve) -> None:
        served: Served = await serve()
        body = {"messages": CHAT, "thinking": True, "enable_thinking": False}
        check(await served.post("/v1/chat/completions", body), 400, "thinking", "contradicts enable_thinking")
        body = {"messages": CHAT, "enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}
        check(await served.post("/v1/chat/completions", body), 400, "enable_thinking", "contradicts")

    @pytest.mark.parametrize("shows", [True, False])
    async def test_reasoning_can_be_left_out(self, serve, shows: bool) -> None:
        served: Served = await serve()
        served.engine.reply = "<think>Hm hm.</think>Yes."
        body = {"messages": CHAT, "max_tokens": 99, "include_reasoning": shows}
        answer = (await served.post("/v1/chat/completions", body)).body
        message = answer["choices"][0]["message"]
        assert (message["content"], message["reasoning"]) == ("Yes.", "Hm hm." if shows else None)
        stream = await served.client.chat.completions.create(
            model="fake", messages=CHAT, max_tokens=99, stream=True, extra_body={"include_reasoning": shows}
        )
        deltas = [chunk.choices[0].delta.model_dump() async for chunk in stream]
        assert "".join(delta.get("reasoning") or "" for delta in deltas) == ("Hm hm." if shows else "")
        assert "".join(delta["content"] or "" for delta in deltas) == "Yes."


async def test_an_effort_that_nothing_reads_is_reported(serve) -> None:
    served: Served = await serve()
    for padding in ({}, {"metadata": {"a": "a" * LARGE_BYTES}}):  # a large body is read by a worker
        body = {"messages": CHAT, "reasoning_effort": "high", "temprature": 1, **padding}
        answer = await served.post("/v1/chat/completions", body)
        assert (answer.status, answer.headers["X-Ignored-Fields"]) == (200, "temprature, reasoning_effort")
    for name in ("thinking", "enable_thinking"):
        check(await served.post("/v1/chat/completions", {"messages": CHAT, name: True}), 400, name, "does not read")


@pytest.mark.parametrize("steps_per_list", [1, 3, 64])
async def test_reasoning_tokens_do_not_depend_on_how_tokens_arrive(serve, folder: Path, steps_per_list: int) -> None:
    with_tokens(byte_level_folder(folder, chat_template=TEMPLATE), "<think>", "</think>")
    served: Served = await serve()
    served.engine.steps_per_list = steps_per_list
    served.engine.reply = "<think>one two</think>three"
    answer = (await served.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": 99})).body
    inside = served.engine.tokenizer.encode("one two", add_special_tokens=False)
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(inside)}
    assert answer["choices"][0]["message"]["reasoning"] == "one two"


async def test_a_continued_message_ends_as_the_template_writes_it(serve, folder: Path) -> None:
    trims = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}"
    byte_level_folder(folder, chat_template=trims)
    served: Served = await serve()
    body = {"messages": [*CHAT, {"role": "assistant", "content": "\nfoo "}], "continue_final_message": True}
    assert (await served.post("/v1/chat/completions", body)).status == 200
    sent = served.engine.tokenizer.decode(served.engine.submitted[0].prompt_token_ids, skip_special_tokens=False)
    assert sent == "<|user|>hi<|end|><|assistant|>foo"


async def test_a_continued_thought_is_reasoning(serve, folder: Path) -> None:
    byte_level_folder(folder, chat_template=TEMPLATE)
    served: Served = await serve()
    served.engine.reply = " see.</think>It is 2."
    last = {"role": "assistant", "content": "<think>\nLet me"}
    body = {"messages": [*CHAT, last], "continue_final_message": True, "max_tokens": 99}
    message = (await served.post("/v1/chat/completions", body)).body["choices"][0]["message"]
    assert (message["reasoning"].strip(), message["content"]) == ("see.", "It is 2.")


@pytest.mark.parametrize(
    "biases", [{"5": 10**400}, {"5": None}, {"5": 1, "05": 2}, {"5": True}, {"5": float("1e308")}, {"9" * 30: 1}]
)
async def test_a_bias_that_is_wrong_is_a_400(serve, biases: dict[str, object]) -> None:
    served: Served = await serve()
    check(await served.post("/v1/completions", {"prompt": "a", "logit_bias": biases}), 400, "logit_bias")


async def test_strict_leaves_the_prompt_as_it_is(serve, folder: Path) -> None:
    byte_level_folder(folder, chat_template=TEMPLATE)
    served: Served = await serve()
    served.engine.info = served.engine.info._replace(max_model_len=1024)
    for strict in (True, False, None):
        tool = {**WEATHER, "function": {**WEATHER["function"], "strict": strict}}
        assert (await served.post("/v1/chat/completions", {"messages": CHAT, "tools": [tool]})).status == 200
    assert len({tuple(request.prompt_token_ids) for request in served.engine.submitted}) == 1


async def test_tokenize_counts_what_a_chat_sends(serve, folder: Path) -> None:
    byte_level_folder(folder, chat_template=TEMPLATE)
    served: Served = await serve()
    for given in ({"enable_thinking": True}, {"reasoning_effort": "high"}, {"thinking": {"type": "enabled"}}, {}):
        await served.post("/v1/chat/completions", {"messages": CHAT, **given})
        tokens = (await served.post("/tokenize", {"messages": CHAT, **given})).body["tokens"]
        assert tokens == list(served.engine.submitted[-1].prompt_token_ids)


async def test_an_effort_of_none_that_a_template_cannot_take_is_reported(serve, folder: Path) -> None:
    byte_level_folder(folder, chat_template="{{ reasoning_effort }}{% for m in messages %}{{ m.content }}{% endfor %}")
    served: Served = await serve()
    answer = await served.post("/v1/chat/completions", {"messages": CHAT, "reasoning_effort": "none"})
    assert answer.headers["X-Ignored-Fields"] == "reasoning_effort"
