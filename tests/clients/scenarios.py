"""Runs the scenarios of one client: `python use_openai.py http://127.0.0.1:8000 demo [NAME…]`.

It needs the standard library only, since every client runs it in an environment of its own.
"""

import argparse
import asyncio
import inspect
import json
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen


class Server(NamedTuple):
    """The server under test, and the model that it serves."""

    url: str
    model: str

    @property
    def base_url(self) -> str:
        return self.url + "/v1"

    def metric(self, name: str, labels: str = "") -> float:
        """The sum of a metric's series with these labels."""
        with urlopen(self.url + "/metrics", timeout=30) as response:
            text = response.read().decode()
        found = re.findall(rf"^{re.escape(name)}{{([^}}]*)}} (\S+)$", text, re.MULTILINE)
        return sum(float(value) for series, value in found if labels in series)

    def aborted(self) -> float:
        """Requests so far whose client went away."""
        return self.metric("vllm:request_success_total", 'finished_reason="abort"')


Scenario = Callable[[Server], Any]
_scenarios: list[Scenario] = []

# The demo model answers these word for word at temperature 0, and every other model may differ.
SUM_QUESTION = "What is 27 plus 15?"
SUM_ANSWER = "27 + 15 = 42."
WEATHER_QUESTION = "What is the weather in Paris?"
WEATHER_RESULT = json.dumps({"temperature": 21, "sky": "sunny"})
WEATHER_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def scenario(function: Scenario) -> Scenario:
    """Registers a function of the server, plain or `async`, which asserts what it sees."""
    _scenarios.append(function)
    return function


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Waits for something that the server does after a request."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not true within {seconds} s: {inspect.getsource(condition).strip()}")
        time.sleep(0.02)


def refused(kind: type[Exception], call: Callable[..., object], *arguments: Any, **options: Any) -> Any:
    """The exception of this kind that a call raises."""
    try:
        call(*arguments, **options)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def main() -> None:
    """Runs the scenarios in their order, or those that are named; exits with 1 where one fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url", help="where the server listens, as in http://127.0.0.1:8000")
    parser.add_argument("model", help="the name of the model that it serves")
    parser.add_argument("names", nargs="*", help="scenarios to run; all by default")
    arguments = parser.parse_args()
    server = Server(arguments.url.rstrip("/"), arguments.model)
    chosen = [one for one in _scenarios if not arguments.names or one.__name__ in arguments.names]
    # One event loop for all, since clients close their connections in it when they are collected.
    with asyncio.Runner() as runner:
        passed = [_passes(one, server, runner) for one in chosen]
    print(f"{sum(passed)} of {len(passed)} scenarios pass", flush=True)
    sys.exit(0 if passed and all(passed) else 1)


def _passes(one: Scenario, server: Server, runner: asyncio.Runner) -> bool:
    try:
        result = one(server)
        if inspect.iscoroutine(result):
            runner.run(result)
    except Exception as error:
        print(f"FAILED {one.__name__}\n{_explain(error)}", flush=True)
        return False
    print(f"ok     {one.__name__}", flush=True)
    return True


def _explain(error: Exception) -> str:
    """The lines of the script that led to an error, without the client's own, and the error."""
    here = str(Path(__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(here)]
    lines = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}: {frame.line}" for frame in frames[1:]]
    lines += "".join(traceback.format_exception_only(error)).splitlines()
    return "\n".join("    " + line for line in lines)
