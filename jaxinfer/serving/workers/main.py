"""A worker's main: reads large bodies, tokenises long texts, until its standard input ends.

Reads frames of limited_process.py: its settings first, then jobs of jobs.py, one after another.
"""

import asyncio
import contextlib
import ctypes
import gc
import math
import os
import resource
import sys
from pathlib import Path

import msgspec

from jaxinfer.serving.bodies.decode import decode_body
from jaxinfer.serving.bodies.structure import check_structure
from jaxinfer.serving.bodies.unknown_fields import MAX_NAME_CHARS, UnknownFields
from jaxinfer.serving.errors import as_request_error
from jaxinfer.serving.requests.conversation import answer_form
from jaxinfer.serving.requests.endpoint import Choice, ModelSide, TextEndpoint
from jaxinfer.serving.requests.endpoints import ENDPOINTS
from jaxinfer.serving.workers import jobs
from jaxinfer.text import TextProcessor
from jaxinfer.text.limited_process import OUT_OF_MEMORY, read_frame, write_frame

_NICENESS = 5


class Worker:
    """Does jobs, one at a time."""

    def __init__(self, settings: jobs.WorkerSettings):
        self._options = settings.options
        self._text = TextProcessor.from_settings(settings.text)
        self._model_name = settings.model_name
        self._form = answer_form(self._options, self._text.chat_template.form)
        self._unknown = UnknownFields(self._options.unknown_fields)

    async def do(self, job: jobs.Job) -> jobs.Reply:
        """The reply; a Failure where the job cannot be done."""
        try:
            match job:
                case jobs.ReadBody():
                    return await self._read(job)
                case jobs.EncodeText():
                    ids = self._text.tokenizer.encode_batch(
                        job.texts, add_special_tokens=job.add_special_tokens, params=job.params, most=job.most
                    )
                    return jobs.Ids([jobs.pack_ids(one) for one in ids])
                case jobs.DecodeText():
                    text = self._text.tokenizer.decode(job.ids, skip_special_tokens=job.skip_special_tokens)
                    return jobs.Text(text)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except Exception as error:
            told = as_request_error(error)
            return jobs.BodyFailure(told.message, told.kind, told.param, told.code, told.retry_after)

    async def _read(self, job: jobs.ReadBody) -> jobs.Requests | jobs.BodyAnswer:
        data = bytes(job.body)
        check_structure(data)
        endpoint = ENDPOINTS[job.endpoint]
        if isinstance(endpoint, Choice):
            endpoint = endpoint.choose(data)
        body, ignored = decode_body(data, endpoint.kind, self._unknown)
        ignored = [name[: MAX_NAME_CHARS + 1] for name in ignored]
        side = ModelSide(self._text, job.info, self._options, self._model_name, self._form)
        if isinstance(endpoint, TextEndpoint):
            return jobs.BodyAnswer(await endpoint.answer(body, side), ignored)
        ignored += endpoint.check(body, side)
        prepared = await endpoint.prepare(body, side)
        return jobs.Requests.of(endpoint.name, msgspec.json.encode(endpoint.slim(body)), ignored, prepared)


def main() -> None:
    """Runs until standard input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    first = read_frame(source)
    if first is None:
        return
    settings = msgspec.json.decode(first, type=jobs.WorkerSettings)
    worker = Worker(settings)
    os.nice(_NICENESS)  # whoever streams goes first
    gc.freeze()
    gc.disable()  # a body of many objects would be walked over and over; what is left of one goes with the next
    _limit_memory(settings.memory_bytes)
    write_frame(sink, b"")
    with asyncio.Runner() as runner:
        while (frame := read_frame(source)) is not None:
            _limit_processor_time(settings.processor_seconds)
            write_frame(sink, _answer(runner, worker, frame))
            frame = None
            _give_memory_back()


def _answer(runner: asyncio.Runner, worker: Worker, frame: bytes) -> bytes:
    try:
        return jobs.encode(runner.run(worker.do(jobs.decode_job(frame))))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


def _limit_memory(more: int) -> None:
    """Allows `more` bytes of address space beyond what there is."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # only Linux tells the size; macOS knows no such limit
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _limit_processor_time(more: int) -> None:
    """Allows so many seconds more; the kernel ends the process when they are used up."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime + more)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _give_memory_back() -> None:
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc keeps it otherwise
        ctypes.CDLL(None).malloc_trim(0)


if __name__ == "__main__":
    main()
