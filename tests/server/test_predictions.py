"""`prediction` of chats: its forms, what reaches the engine, what usage tells, and what is refused."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from jaxinfer.serving.bodies.structure import LARGE_BYTES
from tests.llm import simulated
from tests.server.conftest import Local, Served
from tests.server.conversation import CHAT, TEMPLATE, WEATHER
from tests.server.openai_error import check
from tests.text.folders import byte_level_folder

NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 3})


def content(value: Any) -> dict[str, Any]:
    return {"type": "content", "content": value}


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("hello w\n", "hello w\n"),
        ([{"type": "text", "text": "hello w"}, {"type": "text", "text": "\n"}], "hello w\n"),
        ("a<|end|>b", "a<|end|>b"),
        ("", ""),
        ([], ""),
    ],
)
@pytest.mark.parametrize("large", [False, True])
async def test_its_text_reaches_the_engine_as_plain_tokens(serve, value: Any, text: str, large: bool) -> None:
    served: Served = await serve()
    padding = {"metadata": {"padding": "x" * LARGE_BYTES}} if large else {}
    body = {"messages": CHAT, "prediction": content(value), **padding}
    answer = await served.post("/v1/chat/completions", body)
    assert answer.status == 200
    (request,) = served.engine.submitted
    encoded = served.engine.tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    assert request.prediction == encoded
    assert not set(served.engine.tokenizer.added_ids.values()) & set(encoded)
    details = answer.body["usage"].get("completion_tokens_details", {})
    assert ("accepted_prediction_tokens" in details) == bool(text)


@pytest.mark.parametrize(
    ("prediction", "param", "said"),
    [
        ({"content": "a"}, "prediction.type", "missing"),
        ({"type": "content"}, "prediction.content", "missing"),
        ({"type": "text", "content": "a"}, "prediction.type", "text"),
        (content(5), "prediction.content", "must be a string or an array"),
        (content(None), "prediction.content", "not null"),
        (content([{"type": "text"}]), "prediction.content[0].text", "missing"),
        (content([{"type": "image_url", "text": "a"}]), "prediction.content[0].type", "image_url"),
        (content(["a"]), "prediction.content[0]", "must be an object"),
        ("a", "prediction", "must be an object"),
    ],
)
async def test_what_is_wrong_is_named(serve, prediction: Any, param: str, said: str) -> None:
    served: Served = await serve()
    check(await served.post("/v1/chat/completions", {"messages": CHAT, "prediction": prediction}), 400, param, said)
    assert served.engine.submitted == []


async def test_one_that_is_too_long_is_refused_as_any_text(serve) -> None:
    served: Served = await serve(max_prompt_chars=100)
    body = {"messages": CHAT, "prediction": content("a" * 101)}
    check(await served.post("/v1/chat/completions", body), 400, "prediction.content", "101")


async def test_it_goes_with_choices_log_probabilities_and_tools(serve, folder: Path) -> None:
    byte_level_folder(folder, chat_template=TEMPLATE)
    served: Served = await serve()
    served.engine.info = served.engine.info._replace(max_model_len=1024)
    body = {"n": 2, "logprobs": True, "max_completion_tokens": 4, "tools": [WEATHER]}
    answer = await served.post("/v1/chat/completions", {"messages": CHAT, "prediction": content("hello"), **body})
    assert answer.status == 200, answer.body
    (request,) = served.engine.submitted
    assert len(request.prediction) > 0
    assert (request.sampling.n, request.sampling.logprobs) == (2, 0)


@pytest.fixture(autouse=True)
def draft_always(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated.draft_always(monkeypatch)


def drafts(served: Local) -> tuple[int, int]:
    """Those kept and dropped so far. The simulated device takes all drafts of a row with a prediction from that."""
    stats = served.engine.stats()
    return stats.drafts.accepted_tokens, stats.drafts.draft_tokens - stats.drafts.accepted_tokens


async def test_usage_tells_what_became_of_its_drafts(serve_local) -> None:
    served: Local = await serve_local(speculative_config=NGRAM)
    asked = {"model": "m", "messages": CHAT, "max_completion_tokens": 40, "seed": 3, "temperature": 1}
    reply = await served.client.chat.completions.create(**asked, prediction=content("hello world"), n=2)
    details = reply.usage.completion_tokens_details
    counts = details.accepted_prediction_tokens, details.rejected_prediction_tokens
    assert counts == drafts(served)
    assert min(counts) > 0
    assert reply.usage.completion_tokens == 80  # those dropped are not among them
    plain = await served.client.chat.completions.create(**asked, n=2)
    assert plain.usage.completion_tokens_details is None
    assert [choice.message.content for choice in plain.choices] == [choice.message.content for choice in reply.choices]


@pytest.mark.parametrize("continuous", [False, True])
async def test_so_does_that_of_a_stream(serve_local, continuous: bool) -> None:
    served: Local = await serve_local(speculative_config=NGRAM)
    stream = await served.client.chat.completions.create(
        model="m", messages=CHAT, max_completion_tokens=40, prediction=content("hello"), stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": continuous},
    )  # fmt: skip
    usages = [chunk.usage async for chunk in stream if chunk.usage is not None]
    told = [usage.completion_tokens_details for usage in usages]
    accepted = [details.accepted_prediction_tokens for details in told]
    assert (accepted[-1], told[-1].rejected_prediction_tokens) == drafts(served)
    assert accepted == sorted(accepted)
    assert (len(set(accepted)) > 1) == continuous


async def test_a_stop_string_ends_the_counts_with_the_text(serve_local) -> None:
    """Its end is not the engine's, whose last steps the reply does not wait for."""
    asked = {"model": "m", "messages": CHAT, "max_completion_tokens": 40, "seed": 3, "temperature": 1}
    plain, served = await serve_local(), await serve_local(speculative_config=NGRAM)
    text = (await plain.client.chat.completions.create(**asked)).choices[0].message.content
    stop = text[len(text) // 2 :][:4]
    reply = await served.client.chat.completions.create(**asked, stop=[stop], prediction=content("hello"))
    assert (reply.choices[0].finish_reason, reply.choices[0].message.content) == ("stop", text[: text.find(stop)])
    details = reply.usage.completion_tokens_details
    assert 0 < details.accepted_prediction_tokens < reply.usage.completion_tokens < 40
    assert details.rejected_prediction_tokens > 0


async def test_a_server_that_does_not_draft_says_what_turns_it_on(serve_local) -> None:
    served: Local = await serve_local()
    with pytest.raises(openai.BadRequestError, match=r"prediction: .*--speculative-config") as caught:
        await served.client.chat.completions.create(model="m", messages=CHAT, prediction=content("hello"))
    assert caught.value.param == "prediction"
    reply = await served.client.chat.completions.create(
        model="m", messages=CHAT, prediction=content(""), max_completion_tokens=3
    )
    assert reply.usage.completion_tokens_details is None
