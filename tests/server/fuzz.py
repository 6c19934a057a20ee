"""Sends a server what nobody foresaw: wrong bodies, and frames that are no HTTP.

    python -m tests.server.fuzz [--requests 60000] [--frames 10000] [--seed N]

The server is one of this process, before a FakeEngine; some bodies, up to 4 MB, are so long that workers read them.
Ends with 1 where an answer was a 5xx, an error not in the form of its path, a stream with an error of the server, or
took five seconds.
"""

import argparse
import asyncio
import copy
import json
import logging
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxinfer.server.run import bind_socket, start
from jaxinfer.serving.bodies.structure import LARGE_BYTES
from jaxinfer.serving.config import ServerConfig
from jaxinfer.text import TextProcessor
from tests.server.fake_engine import FakeEngine
from tests.text.folders import byte_level_folder

MOST_SECONDS = 5.0
_AT_ONCE = 16
_LARGE_SHARE, _MOST_LARGE = 0.02, 4 * 2**20

_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_ANTHROPIC_TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
_USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a b", "max_tokens": 3, "stop": ["x"], "logit_bias": {"5": 1}, "logprobs": 1}),
    ("/v1/completions", {"prompt": [[5, 6], [7]], "n": 2, "echo": True, "prompt_logprobs": 1, "stream": False}),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "stream": True, "seed": 1},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "tool_calls": [_CALL]},
                {"role": "tool", "tool_call_id": "c", "content": "b"},
            ],
            "tools": [_TOOL],
            "top_logprobs": 2,
            "logprobs": True,
        },
    ),
    (
        "/v1/messages",
        {
            "max_tokens": 3,
            "system": [{"type": "text", "text": "a"}],
            "stream": True,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "metadata": {"user_id": "a"},
            "output_config": {"effort": "low"},
            "thinking": {"type": "adaptive"},
        },
    ),
    (
        "/v1/messages",
        {
            "max_tokens": 3,
            "tools": [_ANTHROPIC_TOOL],
            "tool_choice": {"type": "auto"},
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "b"}, _USE]},
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c", "content": [], "is_error": True}],
                },
            ],
        },
    ),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a"}], "tools": [], "system": "b"}),
    (
        "/v1/responses",
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "b"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "d"},
            ],
            "tools": [
                {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}},
                {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "g"}]},
            ],
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 1,
            "max_output_tokens": 5,
            "stream": True,
        },
    ),
    ("/v1/responses", {"input": "a", "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}}),
    ("/v1/fim/completions", {"prompt": "a", "suffix": "b", "max_tokens": 2}),
    ("/invocations", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
    ("/tokenize", {"prompt": "a b", "return_token_strs": True}),
    ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"thinking": True}}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
]
_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**40, 1e308, -0.0, 0.5, "", "a", "\x00", "\ud800",
    "é" * 50,
    "<|im_end|>", "{{ x }}", "../../etc/passwd", "a" * 5000, [], {}, [[]], [None], [1, "a"], [[1]], {"a": {"a": {}}},
    {"type": "json_object"}, {"type": "text"}, ["x"] * 40, {"1": 1}, {"x": 1}, {str(i): i for i in range(310)},
    [[[[[[[[[[[[]]]]]]]]]]]], {"type": "function", "function": {"name": "f"}}, "auto", "none", "required", -100, 128,
    {"type": "any"}, {"type": "json_schema", "schema": {}}, [{"type": "image"}], [{"type": "text", "text": "a"}],
]  # fmt: skip
_FIELDS = [
    "n", "best_of", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "logit_bias",
    "logprobs", "top_logprobs", "prompt_logprobs", "max_tokens", "min_tokens", "stream", "stream_options", "echo",
    "suffix", "user", "metadata", "tools", "tool_choice", "response_format", "priority", "cache_salt", "request_id",
    "model", "thinking", "truncate_prompt_tokens", "truncation_side", "add_special_tokens", "reasoning_effort",
    "chat_template_kwargs", "continue_final_message", "add_generation_prompt", "repeat_penalty", "n_predict",
    "num_ctx", "prompt", "messages", "tokens", "presence_penalty", "include_timings", "return_token_ids",
    "best\r\nX: y", "é", "system", "stop_sequences", "output_config", "output_format", "mcp_servers", "type", "content",
    "is_error", "input_schema", "tool_use_id", "input", "instructions", "previous_response_id", "text", "reasoning",
    "include", "truncation", "max_output_tokens", "role", "id", "output", "arguments", "namespace", "format",
]  # fmt: skip


class Found(NamedTuple):
    """What a run has found. statuses: how many answers of each, 0 for none: the server waits for more."""

    statuses: Counter[int]
    wrong: list[str]
    slowest: float


def bodies(draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """Paths and bodies, without end."""
    while True:
        path, body = draw.choice(BODIES)
        body = json.loads(json.dumps(body))
        for _ in range(draw.randint(1, 3)):
            _change(draw, body)
        if draw.random() < _LARGE_SHARE:
            body[draw.choice(["user", "prompt", "input", "instructions"])] = "word " * (_large_size(draw) // 5)
        data = json.dumps(body, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
        yield path, _damaged(draw, data) if draw.random() < 0.3 else data


def _large_size(draw: random.Random) -> int:
    """Draw bytes of a large body; every order of magnitude is as likely as another."""
    return int(math.exp(draw.uniform(math.log(LARGE_BYTES), math.log(_MOST_LARGE))))


def _change(draw: random.Random, body: Any) -> None:
    """Changes one value somewhere inside, or adds a field."""
    while isinstance(body, dict | list) and body:
        keys = list(body) if isinstance(body, dict) else list(range(len(body)))
        key = draw.choice(keys)
        if isinstance(body[key], dict | list) and body[key] and draw.random() < 0.6:
            body = body[key]
            continue
        if isinstance(body, dict) and draw.random() < 0.5:
            body[draw.choice(_FIELDS)] = copy.deepcopy(draw.choice(_VALUES))
        else:
            body[key] = copy.deepcopy(draw.choice(_VALUES))
        return


def _damaged(draw: random.Random, data: bytes) -> bytes:
    """Bytes with some cut out, put in, or repeated."""
    made = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(made) + 1)
        match draw.randrange(4):
            case 0:
                del made[at : at + draw.randint(1, 20)]
            case 1:
                made[at:at] = draw.randbytes(draw.randint(1, 8))
            case 2:
                made[at:at] = made[at : at + 40] * draw.randint(1, 5)
            case _:
                made[at:at] = draw.choice([b"\r\n", b"\x00", b"[" * 600, b'"', b"\\", b"}", b": ", b"\xff", b"1e999"])
    return bytes(made)


def posts(draw: random.Random) -> Iterator[bytes]:
    """Whole requests with wrong bodies."""
    for path, body in bodies(draw):
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        yield head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def frames(draw: random.Random) -> Iterator[bytes]:
    """What may be no HTTP at all."""
    for whole in posts(draw):
        head, _, body = whole.partition(b"\r\n\r\n")
        match draw.randrange(4):
            case 0:
                yield _damaged(draw, head) + b"\r\n\r\n" + body
            case 1:
                chunks = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
                yield head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + _damaged(draw, chunks)
            case 2:
                yield draw.randbytes(draw.randint(1, 200)) + b"\r\n\r\n"
            case _:
                name = draw.choice(
                    [b"Content-Length", b"Transfer-Encoding", b"Expect", b"Upgrade", b"Content-Type", b"X"]
                )
                value = draw.choice([b"", b"-1", b"99999999999999999999", b"chunked", b"a\x00", b"\xff", b"x" * 20_000])
                yield head + b"\r\n" + name + b": " + value + b"\r\n\r\n" + body


async def run(folder: Path, make: Callable[[random.Random], Iterator[bytes]], count: int, seed: int) -> Found:
    """Sends so many of what `make` yields to a server of its own."""
    text = TextProcessor.from_folder(byte_level_folder(folder))
    engine, config = FakeEngine(text.tokenizer), ServerConfig(port=0, drain_seconds=0.0)
    bound = bind_socket(config)
    runner = await start(engine, text, config, bound)
    found, source = Found(Counter(), [], 0.0), make(random.Random(seed))
    port, slowest = bound.getsockname()[1], 0.0
    # A frame may be the beginning of a request, for whose rest the server waits.
    patience = MOST_SECONDS if make is posts else 0.5

    async def send_some(number: int) -> None:
        nonlocal slowest
        for _ in range(number):
            data = next(source)
            begun = time.monotonic()
            answer, at, ended = await _exchange(port, data, patience)
            slowest = max(slowest, at - begun)
            status = _status(answer)
            found.statuses[status] += 1
            why = _wrong(status, answer, anthropic=data.startswith(b"POST /v1/messages") if make is posts else None)
            if make is posts and not ended:
                why = "no whole answer in time"
            elif at - begun > MOST_SECONDS:
                why = f"an answer after {at - begun:.1f} s"
            if why is not None:
                found.wrong.append(f"{why}: {data[:300]!r} gave {answer[:300]!r}")

    await asyncio.gather(*(send_some(count // _AT_ONCE) for _ in range(_AT_ONCE)))
    await engine.close()
    await runner.cleanup()
    text.close()
    return found._replace(slowest=slowest)


async def _exchange(port: int, data: bytes, patience: float) -> tuple[bytes, float, bool]:
    """What comes back in time, when its last byte came, and whether that was all."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer, at = bytearray(), time.monotonic()
    try:
        writer.write(data)
        async with asyncio.timeout(patience):
            answer += await reader.read(1 << 20)
            at = time.monotonic()
        async with asyncio.timeout(MOST_SECONDS):
            while answer and not _ends(bytes(answer)) and (more := await reader.read(1 << 20)):
                answer += more
                at = time.monotonic()
    except (TimeoutError, ConnectionError):
        return bytes(answer), at, False
    finally:
        writer.close()
    return bytes(answer), at, bool(answer)


def _ends(answer: bytes) -> bool:
    """True where an error's body is whole; of others the connection's end tells it."""
    return _status(answer) >= 400 and answer.rstrip().endswith(b"}")


def _status(answer: bytes) -> int:
    words = answer[:20].split()
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") else 0


_FAILURES = (b'data: {"error"', b"event: error", b'"code":"server_error"')
"""How a stream tells that it broke."""


def _wrong(status: int, answer: bytes, *, anthropic: bool | None) -> str | None:
    """anthropic: whether an error has Anthropic's form; None: the path may be unreadable, and either will do."""
    if status >= 500 or any(mark in answer for mark in _FAILURES):
        return "a failure of the server"
    body = answer.partition(b"\r\n\r\n")[2]
    if status < 400 or answer.startswith(b"HTTP/1.1 100"):
        return None
    try:
        told = json.JSONDecoder().raw_decode(body.decode())[0]
        form = set(told), set(told["error"])
    except (ValueError, KeyError, TypeError):
        return "an error in another form"
    right = [form == ({"error"}, {"message", "type", "param", "code"})] if not anthropic else []
    if anthropic is not False:
        right.append(form[0] == {"type", "error", "request_id"} and form[1] - {"details"} == {"type", "message"})
    return None if any(right) else "an error in another form"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=60_000, help="requests with wrong bodies")
    parser.add_argument("--frames", type=int, default=10_000, help="frames that may be no HTTP")
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn from")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    failed = False
    for make, count in ((posts, options.requests), (frames, options.frames)):
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(run(Path(folder) / "model", make, count, options.seed))
        answers = ", ".join(f"{status}: {number}" for status, number in sorted(found.statuses.items()))
        print(f"{make.__name__}: {answers}; slowest {found.slowest:.2f} s; {len(found.wrong)} wrong", flush=True)
        for line in found.wrong[:10]:
            print(f"  {line}")
        failed = failed or bool(found.wrong)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
