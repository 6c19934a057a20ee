"""Requests to several hosts, and what one device answers to them."""

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np

from jaxinfer import LLM, SamplingParams
from tests.quantization.checkpoints import LLAMA, made
from tests.runner.mesh_matrix import plain
from tests.text.folders import byte_level_folder

VOCABULARY = 272
CONFIG = {
    **LLAMA,
    **{"hidden_size": 64, "intermediate_size": 128, "head_dim": 8, "num_attention_heads": 8, "num_key_value_heads": 8},
    **{"vocab_size": VOCABULARY, "max_position_embeddings": 96},
}
"""Each of eight devices has one head."""

ENDED = "[DONE]"


class Choices(NamedTuple):
    """What came of a request. tokens: of each choice, logprobs: of its tokens. end: ENDED, an error's code, or the
    exception's name."""

    tokens: list[list[int]]
    logprobs: list[list[float]]
    end: str


def model_folder(folder: Path, seed: int = 0) -> Path:
    """A small random model that eight devices can share, with a tokenizer."""
    path = made(CONFIG, {}, plain, left=(), seed=seed).write_plain(folder)
    return byte_level_folder(path, chat_template="{{ messages[0].content }}")


def draw_requests(count: int, seed: int) -> list[dict[str, Any]]:
    """Bodies of completions: greedy and seeded, of mixed lengths, some of several choices or with log-probabilities,
    streamed or not."""
    rng = random.Random(seed)
    return [_draw_request(rng, number) for number in range(count)]


def _draw_request(rng: random.Random, number: int) -> dict[str, Any]:
    prompt = [rng.randrange(VOCABULARY) for _ in range(rng.choice((1, 3, 9, 20, 40)))]
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": rng.randint(1, 24), "stream": rng.random() < 0.5}
    body |= {"temperature": 0.0} if rng.random() < 0.5 else {"temperature": 0.9, "seed": number}
    body |= {"n": rng.randint(2, 3)} if rng.random() < 0.2 else {}
    return body | ({"logprobs": 2} if rng.random() < 0.3 else {})


def right_answers(folder: Path, requests: list[dict[str, Any]]) -> list[Choices]:
    """What an engine of one device gives."""
    llm = LLM(str(folder), dtype="float32", max_num_seqs=16, max_num_batched_tokens=64)
    names = ("max_tokens", "temperature", "seed", "n", "logprobs")
    params = [
        SamplingParams(ignore_eos=True, **{name: body[name] for name in names if name in body}) for body in requests
    ]
    outputs = llm.generate([{"prompt_token_ids": body["prompt"]} for body in requests], params, use_tqdm=False)
    llm.close()
    return [
        Choices([list(each.token_ids) for each in output.outputs], [_logprobs(each) for each in output.outputs], ENDED)
        for output in outputs
    ]


def _logprobs(output: Any) -> list[float]:
    pairs = zip(output.logprobs or (), output.token_ids, strict=False)
    return [values[token].logprob for values, token in pairs]


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Choices:
    """Sends a completion's body, whatever becomes of it."""
    count = body.get("n", 1)
    answer = Choices([[] for _ in range(count)], [[] for _ in range(count)], "cut")
    try:
        fields = {**body, "return_token_ids": True, "ignore_eos": True}
        async with session.post(url + "/v1/completions", json=fields) as response:
            if response.status != 200:
                return answer._replace(end=(await response.json())["error"]["code"])
            if not body["stream"]:
                return _with_event(answer, await response.json())._replace(end=ENDED)
            async for line in response.content:
                if line == b"data: [DONE]\n":
                    return answer._replace(end=ENDED)
                if line.startswith(b"data: "):
                    answer = _with_event(answer, json.loads(line.removeprefix(b"data: ")))
    except aiohttp.ClientError as error:
        return answer._replace(end=type(error).__name__)
    return answer


def _with_event(answer: Choices, event: dict[str, Any]) -> Choices:
    if "error" in event:
        return answer._replace(end=event["error"]["code"])
    for choice in event["choices"]:
        answer.tokens[choice["index"]].extend(choice.get("token_ids") or ())
        answer.logprobs[choice["index"]].extend((choice.get("logprobs") or {}).get("token_logprobs") or ())
    return answer


def check(body: dict[str, Any], found: Choices, right: Choices) -> None:
    """An answer that ended is the right one; of others what came is its beginning."""
    if found.end == ENDED:
        assert found.tokens == right.tokens, body
        for one, other in zip(found.logprobs, right.logprobs, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4, err_msg=str(body))
    for tokens, whole in zip(found.tokens, right.tokens, strict=True):
        assert tokens == whole[: len(tokens)], body
