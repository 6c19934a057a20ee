"""What is refused: with OpenAI's error form, and with the name of the field."""

import math

import openai
import pytest

from jaxinfer.sampling import MAX_STOP_STRINGS
from jaxinfer.text import TextProcessor
from tests.parameter_values import NUMBERS, another_value, values_out_of_range
from tests.server.conftest import Served
from tests.server.conversation import CHAT
from tests.server.openai_error import check

CALL = {"name": "f", "arguments": "{}"}
JSON = {"Content-Type": "application/json"}


UNSUPPORTED = {
    "functions": [{"name": "f"}],
    "audio": {"voice": "alloy"},
    "ebnf": 'root ::= "a"',
    "regex": "a+",
    "logprob_token_ids": [5],
    "prompt_embeds": "gASV",
    "thinking_token_budget": 5,
    "vllm_xargs": {"a": 1},
}


@pytest.mark.parametrize("name", UNSUPPORTED)
async def test_a_parameter_that_is_not_supported_yet_is_named(serve, name: str) -> None:
    served: Served = await serve()
    value = {name: UNSUPPORTED[name]}
    check(await served.post("/v1/chat/completions", {"messages": CHAT, **value}), 400, name, "not supported yet")
    check(await served.post("/v1/completions", {"prompt": "a", **value}), 400, name, "not supported yet")
    assert served.engine.submitted == []


async def test_unsupported_parameters_that_ask_for_nothing_are_fine(serve) -> None:
    served: Served = await serve()
    nothing = {"functions": [], "response_format": {"type": "text"}, "suffix": None}
    assert (await served.post("/v1/completions", {"prompt": "a", "echo": False, "best_of": 1, **nothing})).status == 200
    none = {"tools": [], "tool_choice": "none"}
    assert (await served.post("/v1/chat/completions", {"messages": CHAT, **none, **nothing})).status == 200


async def test_the_documented_list_is_accepted_without_effect(serve) -> None:
    served: Served = await serve()
    without = {"metadata": {"a": "b"}, "store": True, "service_tier": "auto"}
    without |= {"prompt_cache_key": "k", "safety_identifier": "s", "prompt_cache_retention": "24h", "verbosity": "low"}
    without |= {"session_id": "s", "stream_interval": 2, "return_token_offsets": False, "mm_payload": "none"}
    assert (await served.post("/v1/completions", {"prompt": "a", **without})).status == 200
    assert (await served.post("/v1/chat/completions", {"messages": CHAT, **without})).status == 200


@pytest.mark.few(36)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0), ("n", 129), ("n", -1), ("n", 10**30), ("n", 1.5), ("n", True), ("max_tokens", 0),
        ("max_tokens", -(2**63)), ("max_tokens", 2**40), ("min_tokens", -1), ("temperature", -0.1),
        ("temperature", 1e9), ("temperature", "hot"), ("top_p", -0.1), ("top_p", 1.1), ("top_k", -2), ("top_k", 2**31),
        ("min_p", 2), ("seed", 2**63), ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0),
        ("logprobs", 21), ("logprobs", -2), ("prompt_logprobs", 21), ("stop", ["x"] * (MAX_STOP_STRINGS + 1)),
        ("stop", ""), ("stop", ["x" * 257]), ("stop", 5), ("stop_token_ids", list(range(100))),
        ("stop_token_ids", [-1]), ("stop_token_ids", [10**6]), ("logit_bias", {str(i): 1 for i in range(301)}),
        ("logit_bias", {"1": 101}), ("logit_bias", {"1000000": 1}), ("logit_bias", {"-1": 1}),
        ("logit_bias", {"a": 1}), ("allowed_token_ids", [10**6]), ("allowed_token_ids", [-1]),
        ("allowed_token_ids", "all"), ("bad_words", ["x"] * 129), ("bad_words", [""]),
        ("bad_words", [" "]), ("bad_words", ["x" * 257]), ("bad_words", 5),
        ("priority", 2**31), ("cache_salt", "x" * 257), ("cache_salt", ""),
    ],
)  # fmt: skip
async def test_caps_and_ranges_are_checked_before_the_engine(serve, field: str, value: object) -> None:
    served: Served = await serve()
    answer = await served.post("/v1/completions", {"prompt": "a", field: value})
    check(answer, 400, field)
    assert served.engine.submitted == []


async def test_names_of_the_chat_endpoint_are_the_users(serve) -> None:
    served: Served = await serve()
    path = "/v1/chat/completions"
    check(await served.post(path, {"messages": CHAT, "max_completion_tokens": 0}), 400, "max_completion_tokens")
    check(
        await served.post(path, {"messages": CHAT, "max_completion_tokens": 999}), 400, "max_completion_tokens", "999"
    )
    check(await served.post(path, {"messages": CHAT, "logprobs": True, "top_logprobs": 21}), 400, "top_logprobs")
    check(await served.post(path, {"messages": CHAT, "top_logprobs": 1}), 400, "top_logprobs")
    check(await served.post(path, {"messages": CHAT, "stream_options": {}}), 400, "stream_options")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
        ([*CHAT, {"role": "assistant", "tool_calls": [{"id": "1"}]}], "messages[1].tool_calls[0].function"),
        ([{"role": "user", "content": "x", "tool_calls": [{"function": CALL}]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "x", "audio": {"id": "a"}}], "messages[0].audio"),
    ],
)
async def test_a_wrong_message_is_named(serve, messages: list[object], param: str) -> None:
    served: Served = await serve()
    check(await served.post("/v1/chat/completions", {"messages": messages}), 400, param)


async def test_no_url_is_fetched_for_a_client(serve) -> None:
    served: Served = await serve()
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}
    answer = await served.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [image]}]})
    check(answer, 400, "messages[0].content[0].type", "image_url")


async def test_no_tensors_are_taken_from_a_client(serve) -> None:
    served: Served = await serve()
    check(await served.post("/v1/completions", {"prompt": "a", "prompt_embeds": "gASV"}), 400, "prompt_embeds")


async def test_lengths_are_told_in_numbers(serve) -> None:
    served: Served = await serve()
    check(await served.post("/v1/completions", {"prompt": [1] * 256}), 400, "prompt", "256 tokens")
    answer = await served.post("/v1/completions", {"prompt": [1] * 200, "max_tokens": 57})
    check(answer, 400, "max_tokens", "57", "200", "256")
    assert answer.body["error"]["code"] == "context_length_exceeded"
    assert (await served.post("/v1/completions", {"prompt": [1] * 200, "max_tokens": 56})).status == 200


async def test_a_default_of_max_tokens_is_cut_to_the_context(serve) -> None:
    served: Served = await serve()
    assert (await served.post("/v1/completions", {"prompt": [1] * 250})).status == 200
    assert served.engine.submitted[0].sampling.max_tokens == 6


async def test_an_empty_prompt_and_a_prompt_of_one_token(serve) -> None:
    served: Served = await serve()
    check(await served.post("/v1/completions", {"prompt": ""}), 400, "prompt", "empty")
    check(await served.post("/v1/completions", {"prompt": []}), 400, "prompt", "empty")
    check(await served.post("/v1/completions", {"prompt": ["a", ""]}), 400, "prompt[1]", "empty")
    check(await served.post("/v1/completions", {}), 400, "prompt")
    assert (await served.post("/v1/completions", {"prompt": [65]})).status == 200


@pytest.mark.parametrize("ids", [[-1], [10**9], [1, 2**70], [[5], [-5]]])
async def test_token_ids_outside_the_vocabulary_do_not_reach_the_engine(serve, ids: list[object]) -> None:
    served: Served = await serve()
    answer = await served.post("/v1/completions", {"prompt": ids})
    check(answer, 400, "prompt[1]" if isinstance(ids[0], list) else "prompt")
    assert served.engine.submitted == []


async def test_prompts_and_choices_are_bounded(serve) -> None:
    served: Served = await serve(max_prompts=2, max_choices=3)
    check(await served.post("/v1/completions", {"prompt": ["a", "b", "c"]}), 400, "prompt", "at most 2")
    check(await served.post("/v1/completions", {"prompt": ["a", "b"], "n": 2}), 400, "n", "at most 3")


async def test_characters_are_counted_before_tokens(serve) -> None:
    served: Served = await serve(max_prompt_chars=100)
    check(await served.post("/v1/completions", {"prompt": "a" * 101}), 400, "prompt", "101 characters")
    long = [{"role": "user", "content": "a" * 101}]
    check(await served.post("/v1/chat/completions", {"messages": long}), 400, "messages[0].content", "101 characters")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"nonsense", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b'{"prompt": "\\udc00x"}',
     b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "temperature": 1e999}', b"[" * 200_000,
     b'{"metadata": ' + b'{"a":' * 100_000],
)  # fmt: skip
async def test_a_body_that_is_no_json_is_an_error_and_the_server_goes_on(serve, data: bytes) -> None:
    served: Served = await serve()
    answer = await served.post("/v1/completions", data=data, headers=JSON)
    assert answer.status == 400
    assert set(answer.body["error"]) == {"message", "type", "param", "code"}
    assert (await served.post("/v1/completions", {"prompt": "a"})).status == 200


async def test_a_body_that_is_too_large(serve) -> None:
    served: Served = await serve(max_body_bytes=1000)
    answer = await served.post("/v1/completions", {"prompt": "a" * 2000})
    check(answer, 413, None, "1000")


async def test_other_content_types_and_compressed_bodies(serve) -> None:
    served: Served = await serve()
    plain = await served.post("/v1/completions", data=b"{}", headers={"Content-Type": "text/plain"})
    check(plain, 415, None, "text/plain")
    packed = await served.post("/v1/completions", data=b"x", headers={**JSON, "Content-Encoding": "gzip"})
    check(packed, 415, None, "compressed")


async def test_unknown_paths_and_methods(serve) -> None:
    served: Served = await serve()
    check(await served.post("/v1/nothing", {}), 404, None)
    check(await served.get("/v1/completions"), 405, None, "POST")


async def test_the_openai_package_understands_the_errors(serve) -> None:
    served: Served = await serve()
    with pytest.raises(openai.BadRequestError) as error:
        await served.client.completions.create(model="fake", prompt="a", max_tokens=-5)
    assert error.value.param == "max_tokens"


async def test_sampling_parameters_reach_the_engine(serve) -> None:
    served: Served = await serve()
    served.engine.info = served.engine.info._replace(scheduling_policy="priority")
    said = {
        "n": 2, "max_tokens": 20, "min_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1,
        "seed": 11, "presence_penalty": 0.2, "frequency_penalty": 0.3, "repetition_penalty": 1.1,
        "logit_bias": {"65": -5}, "logprobs": 3, "prompt_logprobs": 2, "stop": ["x", "y"], "stop_token_ids": [4],
        "include_stop_str_in_output": True, "ignore_eos": True, "skip_special_tokens": False,
        "priority": -3, "cache_salt": "tenant",
    }  # fmt: skip
    assert (await served.post("/v1/completions", {"prompt": "a", **said})).status == 200
    request = served.engine.submitted[0]
    assert (request.priority, request.cache_salt) == (said.pop("priority"), said.pop("cache_salt"))
    expected = said | {"logit_bias": {65: -5}, "stop": ("x", "y"), "stop_token_ids": (4,)}
    assert {name: getattr(request.sampling, name) for name in expected} == expected
    assert math.isclose(request.sampling.temperature, 0.5)


@pytest.mark.parametrize("name", NUMBERS)
async def test_a_number_of_the_table_is_a_field(serve, name: str) -> None:
    served: Served = await serve()
    for wrong in (*values_out_of_range(name), True, "1"):
        check(await served.post("/v1/completions", {"prompt": "a", name: wrong}), 400, name)
    assert served.engine.submitted == []
    assert (await served.post("/v1/completions", {"prompt": "a", name: another_value(name)})).status == 200
    assert getattr(served.engine.submitted[0].sampling, name) == another_value(name)


async def test_lists_are_counted_before_they_are_walked(serve) -> None:
    served: Served = await serve()
    path = "/v1/chat/completions"
    check(await served.post(path, {"messages": CHAT * 10_001}), 400, "messages", "10001 messages")
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}] * 5001}] * 2
    check(await served.post(path, {"messages": parts}), 400, "messages", "10002 text parts")
    answer = await served.post("/v1/completions", {"prompt": [1] * 100_000})
    check(answer, 400, "prompt", "100000 tokens")
    assert answer.body["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("large", [False, True])
async def test_a_prompt_that_is_much_too_long_is_not_tokenised(serve, large: bool) -> None:
    served: Served = await serve()
    words = "word " * (100_000 if large else 3_000)
    bodies = [
        ("/v1/completions", {"prompt": words}, "prompt"),
        ("/v1/completions", {"prompt": ["a", words]}, "prompt[1]"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": words}]}, "messages"),
    ]
    for path, body, param in bodies:
        answer = await served.post(path, body)
        check(answer, 400, param, "has more than 255 tokens", "maximum context length is 256 tokens")
        assert answer.body["error"]["code"] == "context_length_exceeded"
    cut = await served.post("/v1/completions", {"prompt": words, "truncate_prompt_tokens": 5})
    assert cut.status == 200
    counted = await served.post("/tokenize", {"prompt": words})
    assert counted.body["count"] > 3_000


async def test_a_prediction_is_refused_before_it_is_tokenised(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served: Served = await serve()
    served.engine.info = served.engine.info._replace(takes_predictions=False)
    body = {"messages": [{"role": "user", "content": "a"}], "prediction": {"type": "content", "content": "b" * 9_000}}
    encoded: list[str] = []
    monkeypatch.setattr(TextProcessor, "encode_async", lambda *_, **options: encoded.append(options["params"]))
    check(await served.post("/v1/chat/completions", body), 400, "prediction", "needs an engine that drafts by n-grams")
    assert encoded == []
