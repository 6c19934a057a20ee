"""The real server, with several API processes and `--decode-steps`: nothing compiles once it is ready."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import REAL
from tests.processes.serving import Serving, serving
from tests.runner.pairwise import pairwise

TABLE: dict[str, Sequence[Any]] = {
    "length": [1, 5, 40, 300],
    "max_tokens": [1, 2, 11, 40],
    "temperature": [0.0, 0.7],
    "top_p": [1.0, 0.8],
    "top_k": [0, 1, 10],
    "min_p": [0.0, 0.05],
    "presence_penalty": [0.0, 0.5],
    "repetition_penalty": [1.0, 1.2],
    "logit_bias": [None, {"3": 2.0}],
    "min_tokens": [0, 1],
    "stop_token_ids": [[], [25, 26]],
    "ignore_eos": [False, True],
    "seed": [None, 3],
    "n": [1, 3],
    "logprobs": [None, 2],
    "stop": [None, "the"],
    "stream": [False, True],
}


async def ask(server: Serving, number: int, row: dict[str, Any]) -> None:
    body = {name: value for name, value in row.items() if value is not None}
    body["prompt"] = [20 + (number * 7 + i) % 100 for i in range(body.pop("length"))]
    async with server.session.post(server.url + "/v1/completions", json=body) as response:
        text = await response.text()
    assert response.status == 200, text
    assert not row["stream"] or text.endswith("data: [DONE]\n\n")


@pytest.mark.long
async def test_nothing_compiles_after_readiness(tmp_path: Path) -> None:
    flags = ("--api-workers", "2", "--decode-steps", "4", "--max-num-seqs", "8", "--num-blocks", "120")
    async with serving(Path("demo"), *flags, program=REAL) as server:
        rows = list(pairwise(TABLE))
        for first in range(0, len(rows), 12):
            await asyncio.gather(*(ask(server, first + i, row) for i, row in enumerate(rows[first : first + 12])))
        await asyncio.sleep(1.0)  # an API process that hears nothing is told the engine's figures ten times a second
        assert await server.metric("jaxinfer:compiles_after_ready_total") == 0
        assert await server.metric("jaxinfer:steps_total") > 20
        print(f"{len(rows)} requests")


@pytest.mark.long
async def test_the_real_engine_comes_back(tmp_path: Path) -> None:
    body = {"prompt": [30, 31, 32], "max_tokens": 12}
    async with serving(Path("demo"), "--max-num-seqs", "4", program=REAL) as server:
        before = await server.stream(**body)
        assert before.end == "[DONE]"
        server.child("engine").kill()
        await server.until("/readyz", 503, 5)
        await server.until("/readyz", 200, 120)
        assert await server.stream(**body) == before
