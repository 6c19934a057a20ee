"""`jaxinfer serve` over the simulated device, in processes of its own, and what its clients see."""

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil

from tests.children import children_with
from tests.cli.command_line import ENVIRONMENT, SIMULATED
from tests.material import REPOSITORY


class Answer(NamedTuple):
    """A streamed completion: the tokens that came, and how it ended: `[DONE]`, an error's code, or the exception."""

    tokens: list[int]
    end: str


class Serving:
    """A server that runs."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, session: aiohttp.ClientSession):
        self.process = process
        self.url = url
        self.session = session

    def child(self, kind: str, number: int = 0) -> psutil.Process:
        """The engine's process, or an API process."""
        return children_with(kind, self.process.pid)[number]

    async def status(self, path: str) -> int:
        async with self.session.get(self.url + path) as response:
            return response.status

    async def metric(self, name: str, **labels: str) -> float:
        inside = "".join(f'[^}}]*{label}="{value}"' for label, value in labels.items())
        async with self.session.get(self.url + "/metrics") as response:
            found = re.search(rf"^{name}{{{inside}[^}}]*}} (\S+)$", await response.text(), re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    async def until(self, path: str, status: int, seconds: float = 30) -> None:
        async with asyncio.timeout(seconds):
            while await self.status(path) != status:
                await asyncio.sleep(0.01)

    async def until_running(self, count: int) -> None:
        """Waits until the engine runs `count` sequences."""
        async with asyncio.timeout(20):
            while await self.metric("vllm:num_requests_running") < count:
                await asyncio.sleep(0.02)

    async def streams(self, count: int, **body: Any) -> list[asyncio.Task[Answer]]:
        """So many streams that have a token: one without is tried again when its engine is lost."""
        begun = asyncio.Semaphore(0)
        tasks = [asyncio.create_task(self.stream(begun.release, **body)) for _ in range(count)]
        async with asyncio.timeout(30):
            for _ in tasks:
                await begun.acquire()
        return tasks

    async def stream(self, on_token: Callable[[], object] | None = None, **body: Any) -> Answer:
        """A streamed completion of token ids; a refusal ends with its code. on_token: is called at the first."""
        tokens: list[int] = []
        body = {"stream": True, "return_token_ids": True, "ignore_eos": True, "seed": 1, **body}
        try:
            async with self.session.post(self.url + "/v1/completions", json=body) as response:
                if response.status != 200:
                    return Answer([], (await response.json())["error"]["code"])
                async for line in response.content:
                    if not line.startswith(b"data: "):
                        continue
                    if line == b"data: [DONE]\n":
                        return Answer(tokens, "[DONE]")
                    event = json.loads(line.removeprefix(b"data: "))
                    if "error" in event:
                        return Answer(tokens, event["error"]["code"])
                    if on_token is not None and not tokens:
                        on_token()
                    tokens += [token for choice in event["choices"] for token in choice.get("token_ids") or ()]
        except aiohttp.ClientError as error:
            return Answer(tokens, type(error).__name__)
        return Answer(tokens, "cut")


@asynccontextmanager
async def serving(
    folder: Path, *flags: str, program: tuple[str, ...] = SIMULATED, log: Path | None = None
) -> AsyncIterator[Serving]:
    """Starts a server, and ends it: with SIGTERM, unless it has ended. log: gets its standard error. Requests may wait
    for any time: on a busy machine a queue is long."""
    with contextlib.nullcontext() if log is None else log.open("w") as errors:
        process = await asyncio.create_subprocess_exec(
            *program, "serve", str(folder), "--port", "0", "--drain-seconds", "2", "--default-deadline", "0", *flags,
            stdout=asyncio.subprocess.PIPE, stderr=errors, cwd=REPOSITORY, env={**os.environ, **ENVIRONMENT},
        )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(240):
            line = (await process.stdout.readline()).decode()
        url = re.search(r"at (http://\S+) - try", line)
        assert url is not None, f"{line!r}, status {await process.wait()}"
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Serving(process, url[1], session)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 20)
        except TimeoutError:
            process.kill()
            raise
