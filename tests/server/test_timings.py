"""Where the time of a request went: told in the usage where it is asked for, and in a header."""

import json
import re
from typing import Any

import pytest

from jaxinfer.engine.types import RequestTimes
from jaxinfer.metrics import ServerMetrics
from jaxinfer.metrics import requests as module
from jaxinfer.serving.usage import Timings, server_timing, timings_of
from tests.metrics.exposition import INFO
from tests.server.conftest import Served

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
PATHS = [("/v1/completions", {"prompt": "hi"}), ("/v1/chat/completions", CHAT)]


def test_timings_by_hand(monkeypatch) -> None:
    now = 10.0
    monkeypatch.setattr(module.time, "perf_counter", lambda: now)
    metrics = ServerMetrics(INFO, "m")
    first, second = metrics.timer(), metrics.timer()
    first.started(RequestTimes(queue=0.25, prefill=0.5))
    now = 11.0
    first.tokens(0)
    now = 11.5
    first.tokens(0)
    now = 13.0
    first.tokens(0)
    second.started(RequestTimes(queue=0.5, prefill=0.25))
    now = 14.0
    second.tokens(0)
    now = 15.0
    # A burst brought three tokens at once, so there are five where four came one by one.
    assert timings_of([first, second], 5, 7) == Timings(
        queue_ms=500.0,
        prefill_ms=500.0,
        decode_ms=2000.0,
        time_to_first_token_ms=4000.0,
        inter_token_ms=666.667,
        total_ms=5000.0,
        tokens_per_second=1.5,
        cached_tokens=7,
    )


def test_what_did_not_happen_is_not_told(monkeypatch) -> None:
    monkeypatch.setattr(module.time, "perf_counter", lambda: 1.0)
    timings = timings_of([ServerMetrics(INFO, "m").timer()], 0, 0)
    assert timings == Timings(None, None, None, None, None, 0.0, None, 0)
    assert server_timing(timings) == "total;dur=0.000"


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_a_whole_answer(serve, path: str, body: dict[str, Any]) -> None:
    served: Served = await serve()
    plain = await served.post(path, {**body, "max_tokens": 4})
    assert "timings" not in plain.body["usage"]
    answer = await served.post(path, {**body, "max_tokens": 4, "include_timings": True})
    timings = answer.body["usage"]["timings"]
    assert (timings["queue_ms"], timings["prefill_ms"]) == (250.0, 500.0)
    assert 0 < timings["time_to_first_token_ms"] <= timings["total_ms"]
    assert timings["tokens_per_second"] > 0
    assert timings["inter_token_ms"] == pytest.approx(timings["decode_ms"] / 3, abs=0.001)
    for headers in (plain.headers, answer.headers):
        found = dict(re.findall(r"(\w+);dur=([0-9.]+)", headers["Server-Timing"]))
        assert list(found) == ["queue", "prefill", "decode", "total"]
        assert (float(found["queue"]), float(found["prefill"])) == (250.0, 500.0)


@pytest.mark.parametrize("asks", [{"include_timings": True}, {"stream_options": {"include_timings": True}}])
@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_a_stream_tells_them_with_its_usage(serve, path: str, body: dict[str, Any], asks: dict[str, Any]) -> None:
    served: Served = await serve()
    async with served.session.post(
        served.url + path, json={**body, "stream": True, "max_tokens": 4, **asks}
    ) as response:
        assert "Server-Timing" not in response.headers
        lines = (await response.text()).splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 4
    assert events[-1]["usage"]["timings"]["queue_ms"] == 250.0


async def test_timings_of_stream_options_need_a_stream(serve) -> None:
    served: Served = await serve()
    answer = await served.post("/v1/completions", {"prompt": "hi", "stream_options": {"include_timings": True}})
    assert (answer.status, answer.body["error"]["param"]) == (400, "stream_options")
