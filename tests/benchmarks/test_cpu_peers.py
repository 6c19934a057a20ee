"""The comparison of engines: its cases, its client, its model files. Nothing is timed here."""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.cpu_peers import _headline, _row
from benchmarks.peers.cases import FULL, SMALL, Ask, Case
from benchmarks.peers.client import run_asks
from benchmarks.peers.engines import Engine
from benchmarks.peers.models import SMOLLM2_135M, TINY, make_folder, make_gguf


@pytest.mark.parametrize("case", [*FULL, *SMALL], ids=lambda case: f"{case.model} {case.name} {case.requests}")
def test_cases_ask_what_they_say(case: Case) -> None:
    asks = case.asks(1000, seed=0)
    assert asks == case.asks(1000, seed=0)
    assert asks != case.asks(1000, seed=1)
    assert len(asks) == case.requests
    low, high = case.prompts
    assert all(low <= len(ask.prompt) - case.prefix <= high for ask in asks)
    assert len({tuple(ask.prompt[: case.prefix]) for ask in asks}) == 1
    assert len({tuple(ask.prompt) for ask in asks}) == case.requests


def test_the_shape_is_smollm2s() -> None:
    heads, keys = 9 * 64, 3 * 64
    layer = 576 * (heads + 2 * keys) + heads * 576 + 3 * 576 * 1536 + 2 * 576
    assert 30 * layer + 49152 * 576 + 576 == 134_515_008  # parameters, as its card says
    assert (SMOLLM2_135M["num_attention_heads"], SMOLLM2_135M["num_key_value_heads"]) == (9, 3)


async def completions(request: web.Request) -> web.StreamResponse:
    """Makes one token fewer than asked where the prompt begins with 9."""
    body = await request.json()
    made = body["max_tokens"] - (body["prompt"][0] == 9)
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(made):
        await response.write(b'data: {"choices": [{"text": "a"}]}\n\n')
    usage = json.dumps({"choices": [], "usage": {"completion_tokens": made}})
    await response.write(f"data: {usage}\n\ndata: [DONE]\n\n".encode())
    return response


@pytest.fixture
async def url():
    app = web.Application()
    app.add_routes([web.post("/v1/completions", completions)])
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def test_the_client_counts_tokens(url: str) -> None:
    result = await run_asks(url, "m", [Ask([1, 2], 5), Ask([1], 7), Ask([3], 8)], at_once=2)
    assert result["output_tokens"] == 20
    assert result["ttft_ms"] >= 0


async def test_the_client_does_not_believe_an_answer_that_is_too_short(url: str) -> None:
    with pytest.raises(ExceptionGroup) as error:
        await run_asks(url, "m", [Ask([1], 5), Ask([9], 5)], at_once=1)
    assert "made 4 tokens where 5 were asked for" in str(error.value.exceptions[0])


def test_rows_and_headline() -> None:
    runs = [{"output_tokens_per_s": speed, "ttft_ms": 1.0} for speed in (10.0, 30.0, 20.0)]
    ours = [_row("8 at once", f"jaxinfer {kind}", runs) for kind in ("float32", "bfloat16")]
    ours[1]["output_tokens_per_s"] = 25.0
    theirs = _row("8 at once", "llama.cpp bfloat16", runs)
    assert (theirs["output_tokens_per_s"], theirs["low_high"]) == (20.0, [10.0, 30.0])
    assert _headline([*ours, theirs]).endswith("8 at once: jaxinfer 25, llama.cpp 20")


def test_engines_tell_what_they_are_made_of(tmp_path: Path) -> None:
    ours = Engine("jaxinfer", "float32", sys.executable).versions()
    assert ours == {"jax": version("jax"), "jaxlib": version("jaxlib")}
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho warming up >&2\necho 'version: 7000 (abc)' >&2\n")
    program.chmod(0o755)
    assert Engine("llama.cpp", "float32", str(program)).versions() == {"llama.cpp": "version: 7000 (abc)"}


def test_gguf_holds_the_same_weights(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    from safetensors.numpy import load_file

    folder = make_folder(tmp_path, TINY)
    weights = load_file(folder / "model.safetensors")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(make_gguf(folder, "f32")).tensors}
    assert len(tensors) == len(weights)
    down = np.asarray(weights["model.layers.1.mlp.down_proj.weight"], np.float32)
    np.testing.assert_array_equal(tensors["blk.1.ffn_down.weight"].data, down)
    query = np.asarray(weights["model.layers.0.self_attn.q_proj.weight"], np.float32)
    # llama.cpp turns neighbours, Hugging Face halves of a head: channels 0 and 8 of 16 stand side by side.
    np.testing.assert_array_equal(tensors["blk.0.attn_q.weight"].data[:3], query[[0, 8, 1]])
