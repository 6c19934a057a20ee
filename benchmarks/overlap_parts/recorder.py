"""Record the work of host and device over time, while an engine on a real runner decodes."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

from jaxinfer import LLM, SamplingParams
from jaxinfer.engine.device.calls import Call, Start, sampled_by
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.text.request_output import OutputCollector

HOST = ("schedule", "dispatch", "wait", "apply", "text")
"""Stages of the host's work in a step: plan; pack and dispatch; wait for the device; read results; detokenise."""


class Span(NamedTuple):
    """From `start` to `end`, seconds."""

    what: str
    start: float
    end: float


class Timeline(NamedTuple):
    """Spans of the host's work, and of the steps that the device ran."""

    host: list[Span]
    device: list[Span]

    @property
    def idle_share(self) -> float:
        """Share of the device's time in which no step ran."""
        busy = sum(span.end - span.start for span in self.device)
        return 1 - busy / (self.device[-1].end - self.device[0].start)

    def gaps(self) -> list[float]:
        """Seconds between the device's steps."""
        return [after.start - before.end for before, after in zip(self.device, self.device[1:], strict=False)]

    def middle(self, steps: int) -> "Timeline":
        """`steps` of the device's steps from its middle, with what the host did then; times begin at zero."""
        first = len(self.device) // 2
        device = self.device[first : first + steps]
        low, high = self.device[first - 1].end, device[-1].end
        spans = [_cut(span, low, high) for span in self.host if span.end > low and span.start < high]
        return Timeline(spans, [_cut(span, low, high) for span in device])

    def figures(self) -> dict[str, float]:
        """Medians, in milliseconds, and the idle share."""
        host = {name: 1e3 * median(s.end - s.start for s in self.host if s.what == name) for name in HOST}
        device = 1e3 * median(span.end - span.start for span in self.device)
        values = {"device_step_ms": device, "gap_ms": 1e3 * median(self.gaps()), "idle_share": self.idle_share}
        return {name: round(value, 4) for name, value in (values | {f"{k}_ms": v for k, v in host.items()}).items()}

    def described(self) -> str:
        """A line for people."""
        return ", ".join(f"{name} {value}" for name, value in self.figures().items())


def _cut(span: Span, low: float, high: float) -> Span:
    return Span(span.what, max(span.start, low) - low, min(span.end, high) - low)


class _Watch:
    """Notes when steps are ready, in a thread; a step begins when it was dispatched and the one before it is done."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._steps: queue.SimpleQueue[tuple[float, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def note(self, dispatched: float, array: Any) -> None:
        self._steps.put((dispatched, array))

    def close(self) -> None:
        self._steps.put(None)
        self._thread.join()

    def _run(self) -> None:
        last = 0.0
        while (step := self._steps.get()) is not None:
            dispatched, array = step
            array.block_until_ready()
            now = time.perf_counter()
            self.spans.append(Span("step", max(dispatched, last), now))
            last = now


class _Recorder:
    """Stands before a runner and takes times."""

    def __init__(self, runner: Any):
        self._runner = runner
        self.spans: list[Span] = []
        self.watch = _Watch()
        self.mark = time.perf_counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def lap(self, what: str) -> None:
        """Record the work since the last call as `what`."""
        now = time.perf_counter()
        self.spans.append(Span(what, self.mark, now))
        self.mark = now

    def submit(self, call: Call) -> None:
        if isinstance(call, Start):
            self.lap("schedule")
        self._runner.submit(call)
        if (index := sampled_by(call)) is not None:
            self.watch.note(self.mark, self._runner._in_flight[index].sampled.tokens)
            self.lap("dispatch")

    def collect(self, index: int) -> Any:
        # Between dispatch and here nothing is done.
        self.mark = time.perf_counter()
        result = self._runner.collect(index)
        self.lap("wait")
        return result


@contextmanager
def _recorded(llm: LLM) -> Iterator[_Recorder]:
    core, runner = llm.engine, llm.engine.runner
    recorder = _Recorder(runner)
    _put_in(core, recorder)
    try:
        yield recorder
    finally:
        recorder.watch.close()
        _put_in(core, runner)


def _put_in(core: Any, runner: Any) -> None:
    core.runner = runner
    core.in_flight._runner = runner


def record(llm: LLM, rows: int, steps: int) -> Timeline:
    """Decodes `rows` requests for `steps` steps, detokenising as LLM does, after they have all begun."""
    params = SamplingParams(max_tokens=None, ignore_eos=True, temperature=0.0)
    collectors: dict[str, OutputCollector] = {}
    for row in range(rows):
        request = GenerateRequest(f"row {row}", [20 + (7 * row + i) % 100 for i in range(16)], params)
        llm.engine.add_request(request)
        collectors[request.request_id] = OutputCollector(llm.text.tokenizer, request, None)
    for _ in range(10):
        _step(llm, collectors)
    with _recorded(llm) as recorder:
        for _ in range(steps):
            recorder.mark = time.perf_counter()
            outputs = llm.engine.step()
            recorder.lap("apply")
            for delta in llm._sequence_ids.expand(outputs):
                collectors[delta.request_id].push(delta)
            recorder.lap("text")
    llm.engine.abort_all()
    while llm.engine.has_work():
        _step(llm, collectors)
    return Timeline(recorder.spans, recorder.watch.spans)


def _step(llm: LLM, collectors: dict[str, OutputCollector]) -> None:
    for delta in llm._sequence_ids.expand(llm.engine.step()):
        collectors[delta.request_id].push(delta)
