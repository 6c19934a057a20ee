"""Workers: the processes that read large bodies, so that an API process's event loop never waits for one."""

import asyncio
import dataclasses
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from jaxinfer.engine.types import ModelInfo
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.errors import ErrorKind, RequestError
from jaxinfer.serving.workers import jobs
from jaxinfer.serving.workers.places import WorkerPlaces
from jaxinfer.text import TextProcessor
from jaxinfer.text.limited_process import Exceeded, Late, LimitedProcess, ProcessLost

COMMAND = (sys.executable, "-P", "-m", "jaxinfer.serving.workers.main")

RETRY_SECONDS = 2


@dataclasses.dataclass(frozen=True)
class WorkerLimits:
    """Limits of one job."""

    wall_seconds: float = 60.0
    """Time from job to answer; the start of a process is not counted."""
    processor_seconds: int = 20
    """Processor time from job to answer."""
    memory_bytes: int = 2**30
    """Address space beyond what a worker has once it is loaded."""


class Workers:
    """The processes, each started when it is first needed and replaced if a job ends it.

    Jobs that find all of them busy wait; API keys get equal shares of them (places.py). key: whose job it is, `` if the
    server asks for none.
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
        settings = jobs.WorkerSettings(
            text.settings(), shown, model_name, self._limits.memory_bytes, self._limits.processor_seconds
        )
        self._settings = msgspec.json.encode(settings)
        self._idle = [LimitedProcess(COMMAND, self._limits.wall_seconds) for _ in range(options.body_workers)]
        self._all = tuple(self._idle)
        self._closed = False
        shared = len(options.api_keys) > 1
        self._places = WorkerPlaces(options.body_workers, options.body_queue_timeout, shared=shared)
        self._executor = ThreadPoolExecutor(options.body_workers, thread_name_prefix="worker")

    async def read(
        self, endpoint: str, body: bytes | bytearray, info: ModelInfo, *, key: str = ""
    ) -> jobs.Requests | jobs.BodyAnswer:
        """Read a request's body. Raises RequestError."""
        reply = await self._ask(jobs.ReadBody(endpoint, memoryview(body), info), key, len(body))
        assert isinstance(reply, jobs.Requests | jobs.BodyAnswer)
        return reply

    async def encode(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool,
        params: Sequence[str],
        most: int | None = None,
        key: str = "",
    ) -> list[np.ndarray]:
        """Return token ids of each text, int32 [n]: a list of millions takes long to make, and may be too long anyway.

        params: what errors call each. most: of `Tokenizer.encode_batch`. Raises RequestError.
        """
        job = jobs.EncodeText(list(texts), list(params), add_special_tokens, most)
        reply = await self._ask(job, key, sum(map(len, texts)))
        assert isinstance(reply, jobs.Ids)
        return [jobs.unpack_ids(ids) for ids in reply.ids]

    async def decode(self, ids: list[int], *, skip_special_tokens: bool, key: str = "") -> str:
        """Return the text of token ids. Raises RequestError."""
        reply = await self._ask(jobs.DecodeText(ids, skip_special_tokens), key, len(ids))
        assert isinstance(reply, jobs.Text)
        return reply.text

    async def _ask(self, job: jobs.Job, key: str, size: int) -> jobs.Reply:
        await self._places.take(key, size)
        reply = jobs.decode_reply(await self._answer(job, key))
        if isinstance(reply, jobs.BodyFailure):
            raise RequestError(**msgspec.structs.asdict(reply))
        return reply

    async def _answer(self, job: jobs.Job, key: str) -> bytes:
        """Run a job in the place that its key has taken. A client that leaves meanwhile waits for the job's end: its
        body takes memory until then.
        """
        process = self._idle.pop()  # the last used: others need not be started
        running = asyncio.get_running_loop().run_in_executor(self._executor, self._run, process, job)

        def give_back(done: object) -> None:
            self._idle.append(process)
            self._places.give_back(key)

        running.add_done_callback(give_back)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    def close(self) -> None:
        """Ends the processes, and with them the jobs that are under way."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in self._all:
            if process in self._idle:
                process.close()
            else:
                process.kill()  # whoever asks it notices, and closes it

    # In a thread of the executor

    def _run(self, process: LimitedProcess, job: jobs.Job) -> bytes:
        try:
            if not process.running:
                process.start()
                if self._closed:  # meanwhile, and nobody saw this process
                    process.close()
                process.ask(self._settings)
        except (Late, Exceeded, ProcessLost):
            raise _lost("cannot begin") from None
        try:
            return process.ask(jobs.encode(job))
        except Exceeded as error:
            raise RequestError(f"the body took too much {error} to be read", code="body_too_complex") from None
        except Late:
            raise _lost(f"gave no answer within {self._limits.wall_seconds:g} s") from None
        except ProcessLost as error:
            raise _lost(str(error)) from None


def _lost(what: str) -> RequestError:
    return RequestError(
        f"the process that reads large bodies {what}; try again in {RETRY_SECONDS} s",
        kind=ErrorKind.UNAVAILABLE,
        code="worker_lost",
        retry_after=RETRY_SECONDS,
    )
