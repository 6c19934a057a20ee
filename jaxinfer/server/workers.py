"""Workers: the processes that read large bodies, so that an API process's event loop never waits for one."""

import asyncio
import dataclasses
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from jaxinfer.engine.types import ModelInfo
from jaxinfer.server import worker_jobs as jobs
from jaxinfer.server.config import ServerConfig
from jaxinfer.server.errors import ApiError
from jaxinfer.text import TextProcessor
from jaxinfer.text.limited_process import Exceeded, Late, LimitedProcess, Lost

COMMAND = (sys.executable, "-P", "-m", "jaxinfer.server.worker")

RETRY_SECONDS = 2

Wanted = TypeVar("Wanted", bound=msgspec.Struct)


@dataclasses.dataclass(frozen=True)
class WorkerLimits:
    """What one job may take."""

    wall_seconds: float = 30.0
    """Time from job to answer; the start of a process is not counted."""
    memory_bytes: int = 2**30
    """Address space beyond what a worker has once it is loaded."""


class Workers:
    """At most `count` processes, each started when it is first needed and replaced where a job ends it.

    Jobs that find all of them busy wait in the order they came.
    """

    def __init__(
        self,
        text: TextProcessor,
        options: ServerConfig,
        model_name: str,
        limits: WorkerLimits | None = None,
    ):
        self._limits = limits or WorkerLimits()
        shown = dataclasses.replace(options, api_key=None, api_key_file=None)
        settings = jobs.WorkerSettings(text.settings(), shown, model_name, self._limits.memory_bytes)
        self._settings = msgspec.json.encode(settings)
        self._idle: list[LimitedProcess] = []
        self._all: set[LimitedProcess] = set()
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(options.body_workers, thread_name_prefix="worker")

    async def read(self, endpoint: str, body: bytes | bytearray, info: ModelInfo) -> jobs.Prompts | jobs.Answer:
        """What becomes of a request's body. Raises ApiError."""
        reply = await self._ask(jobs.ReadBody(endpoint, memoryview(body), info))
        assert isinstance(reply, jobs.Prompts | jobs.Answer)
        return reply

    async def encode(self, texts: Sequence[str], *, add_special_tokens: bool, params: Sequence[str]) -> list[list[int]]:
        """Token ids of each text. params: what errors call each. Raises ApiError."""
        reply = await self._ask(jobs.Encode(list(texts), list(params), add_special_tokens))
        assert isinstance(reply, jobs.Ids)
        return [jobs.unpack_ids(ids) for ids in reply.ids]

    async def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        """The text of token ids. Raises ApiError."""
        reply = await self._ask(jobs.Decode(ids, skip_special_tokens))
        assert isinstance(reply, jobs.Text)
        return reply.text

    async def _ask(self, job: jobs.Job) -> jobs.Reply:
        answer = await asyncio.get_running_loop().run_in_executor(self._executor, self._run, job)
        reply = jobs.decode_reply(answer)
        if isinstance(reply, jobs.Failure):
            raise reply.error()
        return reply

    def close(self) -> None:
        """Ends the processes, and with them the jobs that are under way."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for process in self._idle:
                process.close()
            for process in self._all.difference(self._idle):
                process.kill()  # whoever asks it notices, and closes it

    @property
    def pids(self) -> list[int]:
        """Of the processes that run."""
        with self._lock:
            return [process.pid for process in self._all if process.pid is not None]

    def _run(self, job: jobs.Job) -> bytes:
        process = self._take()
        try:
            if not process.running:
                process.start()
                process.ask(self._settings)
            return process.ask(jobs.encode(job))
        except Late:
            message = f"the body took more than {self._limits.wall_seconds:g} s to be read"
            raise ApiError(400, message, code="body_too_complex") from None
        except Exceeded as error:
            raise ApiError(400, f"the body took too much {error} to be read", code="body_too_complex") from None
        except Lost as error:
            raise ApiError(
                503,
                f"the process that reads large bodies {error}; try again in {RETRY_SECONDS} s",
                kind="service_unavailable_error",
                code="worker_lost",
                retry_after=RETRY_SECONDS,
            ) from None
        finally:
            with self._lock:
                self._idle.append(process)

    def _take(self) -> LimitedProcess:
        with self._lock:
            if self._idle:
                return self._idle.pop()  # the last used: others need not be started
            process = LimitedProcess(COMMAND, self._limits.wall_seconds)
            self._all.add(process)
            return process
