"""Filling in the middle: /v1/fim/completions, and `suffix` of completions."""

import json
from pathlib import Path

import pytest

from jaxinfer.text.fim import FORMATS, FillInTheMiddle
from jaxinfer.text.tokenizer.tokenizer import Tokenizer
from tests.server.conftest import Served
from tests.server.openai_error import check
from tests.text.folders import byte_level_folder, with_tokens

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|file_sep|>")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_tokens(byte_level_folder(tmp_path / "model"), *QWEN)


def prompt_of(served: Served, number: int = 0) -> str:
    ids = served.engine.submitted[number].prompt_token_ids
    return served.engine.tokenizer.decode(ids, skip_special_tokens=False)


async def test_the_gap_is_filled_in_the_form_of_a_chat(serve) -> None:
    served: Served = await serve()
    body = {"prompt": "def f(", "suffix": "return x", "max_tokens": 1, "random_seed": 7}
    answer = await served.post("/v1/fim/completions", body)
    assert (answer.status, answer.body["object"]) == (200, "chat.completion")
    assert answer.body["choices"][0]["message"]["content"] == "hello"
    assert prompt_of(served) == "<|fim_prefix|>def f(<|fim_suffix|>return x<|fim_middle|>"
    params = served.engine.submitted[0].sampling
    assert params.seed == 7
    ends = {served.engine.tokenizer.token_to_id(name) for name in QWEN[3:]}
    assert set(params.stop_token_ids) == ends
    await served.post("/v1/fim/completions", {"prompt": "x"})
    assert prompt_of(served, 1) == "<|fim_prefix|>x<|fim_suffix|><|fim_middle|>"
    assert served.engine.submitted[1].sampling.max_tokens is None


@pytest.mark.parametrize("options", [{}, {"parse_special": True}, {"parse_special": False}], ids=str)
async def test_control_tokens_around_the_gap(serve, options) -> None:
    """As with completions: control tokens by default, the tokens of their characters where that is asked for."""
    served: Served = await serve()
    answer = await served.post("/v1/fim/completions", {"prompt": "a<|end|>", "suffix": "<|end|>b", **options})
    assert answer.status == 200
    assert "X-Ignored-Fields" not in answer.headers
    assert prompt_of(served) == "<|fim_prefix|>a<|end|><|fim_suffix|><|end|>b<|fim_middle|>"
    end = served.engine.tokenizer.token_to_id("<|end|>")
    found = list(served.engine.submitted[0].prompt_token_ids).count(end or 0)
    assert found == (2 if options.get("parse_special", True) else 0)


async def test_a_stream_of_it(serve) -> None:
    served: Served = await serve()
    body = {"prompt": "def f(", "suffix": "x", "stream": True}
    async with served.session.post(served.url + "/v1/fim/completions", json=body) as response:
        lines = [line[6:] for line in (await response.read()).decode().split("\n\n") if line.startswith("data: {")]
    assert "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines) == "hello world"


async def test_the_suffix_of_a_completion(serve) -> None:
    served: Served = await serve()
    assert (await served.post("/v1/completions", {"prompt": ["a", "b"], "suffix": "z"})).status == 200
    assert prompt_of(served, 1) == "<|fim_prefix|>b<|fim_suffix|>z<|fim_middle|>"
    check(await served.post("/v1/completions", {"prompt": [1, 2], "suffix": "z"}), 400, "prompt", "text")
    check(await served.post("/v1/completions", {"prompt": "a", "suffix": "z", "echo": True}), 400, "echo")
    cut = {"prompt": "a", "suffix": "z", "truncate_prompt_tokens": 1}
    check(await served.post("/v1/completions", cut), 400, "truncate_prompt_tokens")
    check(await served.post("/v1/completions", {"prompt": "a", "suffix": "z" * 5000}), 400, "prompt", "context")
    cut = {"prompt": "abc", "suffix": "z", "truncate_prompt_tokens": 2}
    check(await served.post("/v1/fim/completions", cut), 400, "truncate_prompt_tokens")
    stops = {"prompt": "a", "suffix": "z", "stop_token_ids": list(range(32))}
    check(await served.post("/v1/completions", stops), 400, "stop_token_ids", "at most 30")


async def test_a_tokenizer_without_such_tokens(serve, folder: Path) -> None:
    byte_level_folder(folder)
    served: Served = await serve()
    check(await served.post("/v1/fim/completions", {"prompt": "a"}), 400, "suffix", "filling in the middle")


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.parts[0])
def test_every_form(tmp_path: Path, form) -> None:
    parts = [part for part in form.parts if part]
    tokenizer = Tokenizer(with_tokens(byte_level_folder(tmp_path / "model"), *parts))
    prefix, suffix = tokenizer.encode("p", add_special_tokens=False), tokenizer.encode("s", add_special_tokens=False)
    text = tokenizer.decode(FillInTheMiddle(tokenizer).prompt_ids(prefix, suffix), skip_special_tokens=False)
    first, second = (form.parts[0] + "p", form.parts[1] + "s")
    assert text == (second + first if form.suffix_first else first + second) + form.parts[2]
