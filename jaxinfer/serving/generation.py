"""Generation: the engine requests of one request, from submission to the last token."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from jaxinfer.engine.client.base import EngineClient
from jaxinfer.engine.types import FinishReason, GenerateRequest, TokenDelta, TokenLogprobs
from jaxinfer.errors import EngineDeadError, QueueFullError
from jaxinfer.metrics import EndedRequest, RequestTimer, ServerMetrics
from jaxinfer.serving.errors import ErrorKind, RequestError, unavailable
from jaxinfer.serving.tracing import Outcome, RequestSpan
from jaxinfer.serving.usage import CompletionTokensDetails, PromptTokensDetails, Timings, Usage, timings_of
from jaxinfer.text import ChoiceDelta, OutputAssembler, Tokenizer, join_deltas

AWAY_SECONDS = 120.0
"""Seconds that a request without a token waits for an engine that has gone."""


class PromptStep(NamedTuple):
    """Output that the engine adds to one prompt, a delta for each choice. Choices are numbered within the prompt.

    It is of one engine step, or of several if the reader is slower than the engine.
    """

    prompt_index: int
    deltas: list[ChoiceDelta]


class Generation:
    """Submits requests, turns what comes back into text, and leaves nothing running behind it.

    An async context manager: whatever ends it, a lost client included, requests that have not ended are
    aborted. Raises on entry what `EngineClient.submit` raises; then none of the requests is queued.
    tells_timings: whether `usage` does. span: is ended when this is left.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        metrics: ServerMetrics,
        requests: Sequence[GenerateRequest],
        *,
        tells_timings: bool = False,
        span: RequestSpan | None = None,
    ):
        self._tells_timings = tells_timings
        self._span = span
        self._failure: str | None = None
        self._client = client
        self.requests = requests
        self._runs = [_Run(client, tokenizer, request, metrics) for request in requests]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        if not self._client.ready:
            raise unavailable("the engine is not ready")
        try:
            for run in self._runs:
                await run.submit()
        except BaseException as error:
            self._failure = type(error).__name__
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, ConnectionError):
            self._failure = type(error).__name__
        await self._leave()

    async def _leave(self) -> None:
        if self._failure is None and not all(run.finished for run in self._runs):
            self._failure = "client_gone"
        for run in self._runs:
            run.abort()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._span is not None:
            reasons = [reason for run in self._runs for reason in run.finish_reasons]
            outcome = Outcome(self.usage(), self.timings(), reasons, self._failure)
            self._span.end(self.requests, outcome)

    async def steps(self) -> AsyncIterator[PromptStep]:
        """Yield the engine's output as it comes, until every choice has ended. Raises RequestError, EngineDeadError."""
        try:
            if len(self._runs) == 1:
                async for deltas in self._runs[0].steps():
                    yield PromptStep(0, deltas)
                return
            async for step in self._steps_of_all():
                yield step
        except Exception as error:
            self._failure = type(error).__name__
            raise

    async def _steps_of_all(self) -> AsyncIterator[PromptStep]:
        queue: asyncio.Queue[PromptStep | Exception | None] = asyncio.Queue()
        self._tasks = [asyncio.create_task(_pump(i, run, queue)) for i, run in enumerate(self._runs)]
        for _ in self._runs:
            while (step := await queue.get()) is not None:
                if isinstance(step, Exception):
                    raise step
                yield step

    def prompt_token_ids(self, prompt_index: int) -> list[int]:
        """Return the token ids of one prompt."""
        return np.asarray(self.requests[prompt_index].prompt_token_ids).tolist()

    def prompt_logprobs(self, prompt_index: int) -> list[TokenLogprobs | None] | None:
        """Return the log-probabilities of one prompt, once its first token has come."""
        return self._runs[prompt_index].prompt_logprobs

    @property
    def has_logprobs(self) -> bool:
        """True where log-probabilities were asked for, of tokens or of prompts."""
        asked = (request.sampling for request in self.requests)
        return any(params.prompt_logprobs is not None or params.logprobs is not None for params in asked)

    def usage(self) -> Usage:
        """Tokens so far."""
        prompt = sum(len(request.prompt_token_ids) for request in self.requests)
        completion = sum(run.num_tokens for run in self._runs)
        cached = sum(run.cached_tokens for run in self._runs)
        usage = Usage(prompt, completion, prompt + completion, PromptTokensDetails(cached))
        if any(len(request.prediction) for request in self.requests):
            usage.completion_tokens_details = CompletionTokensDetails(
                accepted_prediction_tokens=sum(run.accepted_prediction for run in self._runs),
                rejected_prediction_tokens=sum(run.rejected_prediction for run in self._runs),
            )
        if self._tells_timings:
            usage.timings = self.timings()
        return usage

    def timings(self) -> Timings:
        """Return the times of the request so far."""
        tokens, cached = (sum(getattr(run, name) for run in self._runs) for name in ("num_tokens", "cached_tokens"))
        return timings_of([run.timer for run in self._runs], tokens, cached)


async def _pump(index: int, run: "_Run", queue: "asyncio.Queue[PromptStep | Exception | None]") -> None:
    try:
        async for deltas in run.steps():
            queue.put_nowait(PromptStep(index, deltas))
    except Exception as error:
        queue.put_nowait(error)
    else:
        queue.put_nowait(None)


class _Run:
    """One engine request."""

    def __init__(self, client: EngineClient, tokenizer: Tokenizer, request: GenerateRequest, metrics: ServerMetrics):
        self.request = request
        self._until = math.inf if request.max_wait is None else time.monotonic() + request.max_wait
        self.cached_tokens = 0
        self.preemptions = 0
        self.accepted_prediction = 0
        self.rejected_prediction = 0
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self.finish_reasons: list[str] = []
        self.timer: RequestTimer = metrics.timer()
        self._metrics = metrics
        self._client = client
        self._source: AsyncIterator[list[TokenDelta]] | None = None
        self._begun = False
        self._tries = 0
        params = request.sampling
        self._choices = [OutputAssembler(tokenizer, request.prompt_token_ids, params, i) for i in range(params.n)]

    @property
    def num_tokens(self) -> int:
        """Tokens kept, of all choices."""
        return sum(choice.num_tokens for choice in self._choices)

    @property
    def finished(self) -> bool:
        return all(choice.finished for choice in self._choices)

    async def submit(self) -> None:
        """Queue the request. Raises what `EngineClient.submit` raises, and RequestError where its time is over before
        it is queued, as while its grammar is compiled."""
        request, bound = self.request, None if math.isinf(self._until) else self._until
        if self._tries and bound is not None:
            request = replace(request, max_wait=max(bound - time.monotonic(), 0.0))
        self._tries += 1
        try:
            async with asyncio.timeout_at(bound):
                self._source = await self._client.submit(request)
        except TimeoutError:
            raise self._timed_out("the grammar was not compiled in time") from None
        except QueueFullError:
            self._metrics.rejected("max_waiting")
            raise

    def abort(self) -> None:
        """Ends at the engine what has not ended. Without effect before `submit` and after the end."""
        if self._source is not None and not self.finished:
            self._source = None
            self._client.abort(self.request.request_id)
            for choice in self._choices:
                if not choice.finished:
                    self._end_choice(FinishReason.ABORT)

    async def steps(self) -> AsyncIterator[list[ChoiceDelta]]:
        while not self.finished:
            assert self._source is not None
            try:
                async for deltas in self._read(self._source):
                    yield deltas
            except EngineDeadError as error:
                self._source = None  # there is nothing left to abort
                await self._try_again(error)

    async def _try_again(self, error: EngineDeadError) -> None:
        """Submit once more if no token has come, when the engine is back. Raises the error that ended the first try
        where that cannot be."""
        try:
            if self._begun or self._tries > 1:
                raise error
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._client.wait_ready(), min(AWAY_SECONDS, self._until - time.monotonic()))
            if not self._client.ready:
                raise error
            await self.submit()
        except BaseException:
            for choice in self._choices:
                if not choice.finished:
                    self._end_choice(FinishReason.ERROR)
            raise

    async def _read(self, source: AsyncIterator[list[TokenDelta]]) -> AsyncIterator[list[ChoiceDelta]]:
        held: list[ChoiceDelta] = []
        async for deltas in source:
            self._begun = True
            held += [found for delta in deltas if (found := self._take(delta)) is not None]
            # Every choice may have to begin with its prompt, whose log-probabilities come with choice 0.
            if held and not self._waits_for_prompt():
                # Of a choice that has several deltas here, chunks would all tell the usage after the last.
                yield join_deltas(held)
                held = []
            if self.finished:
                self.timer.request_ended(self._ended())
                return
        raise unavailable("the engine ended the request before its last token")

    def _ended(self) -> EndedRequest:
        tokens = [choice.num_tokens for choice in self._choices]
        asked = self.request.sampling.max_tokens
        return EndedRequest(len(self.request.prompt_token_ids), self.cached_tokens, tokens, self.preemptions, asked)

    def _waits_for_prompt(self) -> bool:
        wanted = self.request.sampling.prompt_logprobs is not None
        return wanted and self.prompt_logprobs is None and not self.finished

    def _take(self, delta: TokenDelta) -> ChoiceDelta | None:
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        self.preemptions += delta.preemptions
        self.accepted_prediction += delta.accepted_prediction
        self.rejected_prediction += delta.rejected_prediction
        if delta.times is not None:
            self.timer.started(delta.times)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        shown = self._choices[delta.index].push(delta)
        if shown is None:
            return None
        if shown.stop_at is not None:
            self._client.stop(self.request.request_id, delta.index)
        if shown.token_ids:
            self.timer.tokens(delta.index)
        if shown.finish_reason is not None:
            self._end_choice(shown.finish_reason)
            self._check_reason(shown)
        return shown

    def _end_choice(self, reason: FinishReason) -> None:
        self.finish_reasons.append(reason.value)
        self.timer.sequence_ended(reason)

    def _check_reason(self, delta: ChoiceDelta) -> None:
        if delta.finish_reason is FinishReason.TIMEOUT:
            raise self._timed_out("no slot was free in time")
        _check_reason(delta)

    def _timed_out(self, cause: str) -> RequestError:
        wait = max(1, math.ceil(self._client.stats().scheduler.expected_wait))
        return RequestError(
            f"{cause}; try again in {wait} s", kind=ErrorKind.BUSY, code="queue_timeout", retry_after=wait
        )


def _check_reason(delta: ChoiceDelta) -> None:
    if delta.finish_reason is FinishReason.ERROR and delta.param is not None:
        raise RequestError(f"{delta.param}: {delta.error}", param=delta.param, code="constraint_failed")
    if delta.finish_reason is FinishReason.ERROR:
        message = f"the engine failed on this request: {delta.error or 'no reason given'}"
        raise RequestError(message, kind=ErrorKind.FAILED, code="engine_error")
    if delta.finish_reason is FinishReason.ABORT:
        raise unavailable("the request was aborted by the server")
