"""SMG, a gateway, in front of the server's `VllmEngine`: what its own HTTP clients get.

The gateway is started here. The variable JAXINFER_GRPC says where the server serves gRPC, as in 127.0.0.1:50051.
"""

import atexit
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from scenarios import SUM_ANSWER, SUM_QUESTION, WEATHER_QUESTION, WEATHER_TOOL, Server, main, scenario, wait_until

PROMPT, CONTINUED = "The capital of France is", " Paris."
SUM = [{"role": "user", "content": SUM_QUESTION}]
SECONDS_FOR_RETRIES = 3  # its first ones come after 0.1 to 1.6 s


class Gateway(NamedTuple):
    """A gateway that runs, and what it logs."""

    port: int
    log: Path

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """Status and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        status, text = self.post(path, body)
        assert status == 200, text
        return json.loads(text)

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream that ends well."""
        status, text = self.post(path, {**body, "stream": True})
        assert status == 200, text
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]", text
        return [json.loads(event) for event in events[:-1]]


@cache
def gateway(server: Server) -> Gateway:
    """The gateway of all scenarios, once it answers."""
    folder = tempfile.TemporaryDirectory()
    own = Gateway(_free_port(), Path(folder.name, "log"))
    with own.log.open("w") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "smg.launch_router", "--host", "127.0.0.1", "--port", str(own.port),
                "--prometheus-host", "127.0.0.1", "--prometheus-port", str(_free_port()),
                "--worker-urls", f"grpc://{os.environ['JAXINFER_GRPC']}", "--policy", "cache_aware",
                "--tool-call-parser", "qwen", "--shutdown-grace-period-secs", "1",
            ],
            stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "NO_COLOR": "1"},
        )  # fmt: skip
    atexit.register(_end, process, folder)
    wait_until(lambda: process.poll() is not None or _answers(own, server.model), 60)
    assert process.poll() is None, own.log.read_text()
    return own


def _end(process: "subprocess.Popen[bytes]", folder: "tempfile.TemporaryDirectory[str]") -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    folder.cleanup()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _answers(gateway: Gateway, model: str) -> bool:
    """False while it does not listen, knows no worker, or has not fetched the tokenizer."""
    try:
        status, _ = gateway.post("/v1/completions", {"model": model, "prompt": "a", "max_tokens": 1})
    except OSError:
        return False
    return status == 200


@scenario
def chat(server: Server) -> None:
    reply = gateway(server).ask("/v1/chat/completions", {"model": server.model, "messages": SUM, "temperature": 0})
    (choice,) = reply["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (SUM_ANSWER, "stop")
    assert 0 < reply["usage"]["completion_tokens"] < reply["usage"]["total_tokens"]


@scenario
def stream_with_usage(server: Server) -> None:
    body = {"model": server.model, "messages": SUM, "temperature": 0, "stream_options": {"include_usage": True}}
    events = gateway(server).stream("/v1/chat/completions", body)
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"]) == SUM_ANSWER
    whole = gateway(server).ask("/v1/chat/completions", {"model": server.model, "messages": SUM, "temperature": 0})
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


@scenario
def log_probabilities_of_a_chat(server: Server) -> None:
    body = {"model": server.model, "messages": SUM, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    entries = gateway(server).ask("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"]
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in entries)
    assert "".join(entry["token"] for entry in entries).startswith(SUM_ANSWER)


@scenario
def echo_with_and_without_log_probabilities(server: Server) -> None:
    """SMG never shows the log-probabilities of a completion, but it asks for them."""
    for asked in ({}, {"logprobs": 2}):
        body = {"model": server.model, "prompt": PROMPT, "temperature": 0, "echo": True, **asked}
        (choice,) = gateway(server).ask("/v1/completions", body)["choices"]
        assert (choice["text"], choice["finish_reason"]) == (PROMPT + CONTINUED, "stop")
        events = gateway(server).stream("/v1/completions", body)
        assert "".join(event["choices"][0]["text"] for event in events) == PROMPT + CONTINUED
        both = gateway(server).ask("/v1/completions", {**body, "n": 2})["choices"]
        assert [choice["text"] for choice in both] == [PROMPT + CONTINUED] * 2


@scenario
def echo_alone(server: Server) -> None:
    for asked in ({}, {"logprobs": 1}):
        body = {"model": server.model, "prompt": PROMPT, "max_tokens": 0, "echo": True, **asked}
        reply = gateway(server).ask("/v1/completions", body)
        (choice,) = reply["choices"]
        assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
        assert reply["usage"]["completion_tokens"] == 0
        events = gateway(server).stream("/v1/completions", body)
        assert "".join(event["choices"][0]["text"] for event in events) == PROMPT


@scenario
def stop_strings(server: Server) -> None:
    body = {"model": server.model, "prompt": PROMPT, "temperature": 0, "stop": ["aris"]}
    (choice,) = gateway(server).ask("/v1/completions", body)["choices"]
    assert (choice["text"], choice["finish_reason"]) == (" P", "stop")


@scenario
def a_tool_is_called(server: Server) -> None:
    messages = [{"role": "user", "content": WEATHER_QUESTION}]
    body = {"model": server.model, "messages": messages, "temperature": 0, "tools": [WEATHER_TOOL]}
    (choice,) = gateway(server).ask("/v1/chat/completions", body)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], choice["finish_reason"]) == ("get_weather", "tool_calls")
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


@scenario
def a_structured_answer(server: Server) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}}}
    schema |= {"required": ["sum"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    (choice,) = gateway(server).ask(
        "/v1/chat/completions", {"model": server.model, "messages": SUM, "response_format": form}
    )["choices"]
    answer = json.loads(choice["message"]["content"])
    assert list(answer) == ["sum"]
    assert 0 <= answer["sum"] <= 99
    assert choice["finish_reason"] == "stop"


@scenario
def a_client_that_leaves_ends_its_request(server: Server) -> None:
    aborted = server.aborted()
    connection = http.client.HTTPConnection("127.0.0.1", gateway(server).port, timeout=60)
    body = {"model": server.model, "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    response.close()
    connection.close()
    wait_until(lambda: server.aborted() == aborted + 1)


@scenario
def the_gateway_asks_for_cache_events_once(server: Server) -> None:
    wait_until(lambda: "SubscribeKvEvents" in gateway(server).log.read_text())
    time.sleep(SECONDS_FOR_RETRIES)
    log = gateway(server).log.read_text()
    assert log.count("does not implement SubscribeKvEvents") == 1, log
    assert "KV event stream" not in log, log


if __name__ == "__main__":
    main()
