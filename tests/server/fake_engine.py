"""FakeEngine: an EngineClient that says what a test tells it to say, token by token, and can be made to fail."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable

from jaxinfer.engine.stats.counters import CoreStats, EngineStats, KVStats, SchedulerStats
from jaxinfer.engine.types import FinishReason, GenerateRequest, ModelInfo, RequestTimes, TokenDelta, TokenLogprobs
from jaxinfer.errors import EngineDeadError, QueueFullError
from jaxinfer.text import Tokenizer


class FakeEngine:
    """Answers every choice with the tokens of `reply`, then with the end-of-sequence token.

    reply: a text, or a function from request and choice index to a text. gate: cleared, no token comes. compiled:
    cleared, nothing is queued, as while a grammar is compiled.
    end_at_once: the reason for which every choice ends before its first token; None: it does not.
    steps_per_list: how many steps one list of deltas holds, as where the reader is slower than the engine.
    logprob: of each token, by choice index. stop_token: what ends a choice instead of the end-of-sequence token.
    submitted, stopped, aborted: what the server has asked for. active: ids of requests that have not ended.
    """

    def __init__(self, tokenizer: Tokenizer, reply: str | Callable[[GenerateRequest, int], str] = "hello world"):
        self.tokenizer = tokenizer
        self.reply = reply
        self.max_waiting = 1000
        self.cached_tokens = 0
        self.steps_per_list = 1
        self.logprob: Callable[[int], float] = lambda index: -0.25
        self.stop_token: int | None = None
        self.end_at_once: FinishReason | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.compiled = asyncio.Event()
        self.compiled.set()
        self.submitted: list[GenerateRequest] = []
        self.stopped: list[tuple[str, int]] = []
        self.aborted: list[str] = []
        self._active: dict[str, _Active] = {}
        self._generated = 0
        self._dead: EngineDeadError | None = None
        self._comes_back = False
        self._back = asyncio.Event()
        self._back.set()
        self.info = ModelInfo(
            name="fake",
            max_model_len=256,
            vocab_size=tokenizer.vocab_size,
            max_num_seqs=8,
            block_size=16,
            num_blocks=64,
            takes_predictions=True,
        )

    @property
    def ready(self) -> bool:
        return self._dead is None

    @property
    def lost(self) -> bool:
        return not self.ready and not self._comes_back

    async def wait_ready(self) -> None:
        if not self.lost:
            await self._back.wait()

    @property
    def active(self) -> set[str]:
        return set(self._active)

    async def submit(self, request: GenerateRequest) -> AsyncIterator[list[TokenDelta]]:
        if self._dead is not None:
            raise self._dead
        if len(self._active) >= self.max_waiting:
            raise QueueFullError(len(self._active), retry_after=7)
        await self.compiled.wait()
        # Requests with lists can be compared.
        lists = {name: list(map(int, getattr(request, name))) for name in ("prompt_token_ids", "prediction")}
        self.submitted.append(dataclasses.replace(request, **lists))
        active = self._active[request.request_id] = _Active(self, request)
        if self.end_at_once is not None:
            active.end_all(self.end_at_once)
        return active.deltas()

    def stop(self, request_id: str, index: int) -> None:
        self.stopped.append((request_id, index))
        if request_id in self._active:
            self._active[request_id].end(index, FinishReason.STOP)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if request_id in self._active:
            self._active[request_id].end_all(FinishReason.ABORT)

    def end_all(self, reason: FinishReason) -> None:
        """Ends every request that has not ended."""
        for active in list(self._active.values()):
            active.end_all(reason)

    def stats(self) -> EngineStats:
        if self._dead is not None:
            raise self._dead
        blocks = 2 * len(self._active)
        prompt_tokens = sum(len(request.prompt_token_ids) for request in self.submitted)
        return EngineStats(
            scheduler=SchedulerStats(running=len(self._active)),
            kv=KVStats(blocks, 64),
            core=CoreStats(prompt_tokens=prompt_tokens, generation_tokens=self._generated),
        )

    async def read_stats(self) -> EngineStats:
        return self.stats()

    async def close(self) -> None:
        for active in list(self._active.values()):
            active.end_all(FinishReason.ABORT)

    def die(self, reason: str = "the device was lost", *, comes_back: bool = False) -> None:
        """The engine dies: every stream fails, nothing can be submitted, for good or until it is back."""
        self._dead, self._comes_back = EngineDeadError(reason), comes_back
        self._back.clear()
        for active in self._active.values():
            active.queue.put_nowait(self._dead)
        self._active.clear()

    def come_back(self) -> None:
        """The engine was started again."""
        self._dead = None
        self._back.set()

    def fail_requests(self, reason: str, param: str | None = None) -> None:
        """Every active request ends with an error, of a field of its own or not; the engine lives on."""
        for active in list(self._active.values()):
            active.end_all(FinishReason.ERROR, reason, param)

    def text_of(self, request: GenerateRequest, index: int) -> str:
        return self.reply if isinstance(self.reply, str) else self.reply(request, index)

    def count(self, tokens: int) -> None:
        self._generated += tokens

    def forget(self, request_id: str) -> None:
        self._active.pop(request_id, None)


class _Active:
    """A request that has not ended."""

    def __init__(self, engine: FakeEngine, request: GenerateRequest):
        self.queue: asyncio.Queue[list[TokenDelta] | Exception] = asyncio.Queue()
        self._engine = engine
        self._request = request
        self._open = set(range(request.sampling.n))
        self._tokens = [
            engine.tokenizer.encode(engine.text_of(request, i), add_special_tokens=False) for i in self._open
        ]
        self._task = asyncio.create_task(self._run())

    async def deltas(self) -> AsyncIterator[list[TokenDelta]]:
        while True:
            item = await self.queue.get()
            if isinstance(item, Exception):
                raise item
            yield item
            if not self._open and self.queue.empty():
                return

    def end(self, index: int, reason: FinishReason, error: str | None = None, param: str | None = None) -> None:
        if index in self._open:
            self._open.discard(index)
            delta = TokenDelta(self._request.request_id, index, [], finish_reason=reason, error=error, param=param)
            self._forget_if_over()
            self.queue.put_nowait([delta])

    def end_all(self, reason: FinishReason, error: str | None = None, param: str | None = None) -> None:
        for index in sorted(self._open):
            self.end(index, reason, error, param)

    async def _run(self) -> None:
        step = 0
        unread: list[TokenDelta] = []
        while self._open:
            await self._engine.gate.wait()
            await asyncio.sleep(0)
            if self._engine.ready and self._open:
                deltas = [self._delta(index, step) for index in sorted(self._open)]
                self._open -= {delta.index for delta in deltas if delta.finish_reason is not None}
                self._engine.count(len(deltas))
                self._forget_if_over()
                unread += deltas
                if (step + 1) % self._engine.steps_per_list == 0 or not self._open:
                    self.queue.put_nowait(unread)
                    unread = []
            step += 1

    def _delta(self, index: int, step: int) -> TokenDelta:
        tokens, params = self._tokens[index], self._request.sampling
        eos = self._engine.tokenizer.eos_token_id if self._engine.stop_token is None else self._engine.stop_token
        assert eos is not None
        over = step >= len(tokens)
        token = eos if over else tokens[step]
        longest = params.max_tokens is not None and step + 1 >= params.max_tokens
        reason = FinishReason.STOP if over else FinishReason.LENGTH if longest else None
        logprob = self._engine.logprob(index)
        top = [(token, logprob), *((other, -2.0 - other) for other in range(params.logprobs or 0))]
        return TokenDelta(
            self._request.request_id,
            index,
            [token],
            logprobs=None if params.logprobs is None else [TokenLogprobs(token, logprob, 1, top[: params.logprobs])],
            finish_reason=reason,
            stop_token_id=eos if over else None,
            cached_tokens=self._engine.cached_tokens,
            prompt_logprobs=self._prompt_logprobs() if step == 0 and index == 0 else None,
            times=RequestTimes(queue=0.25, prefill=0.5) if step == 0 and index == 0 else None,
        )

    def _prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        if self._request.sampling.prompt_logprobs is None:
            return None
        rest = self._request.prompt_token_ids[1:]
        return [None, *(TokenLogprobs(token, -1.5, 3, [(0, -0.5)]) for token in rest)]

    def _forget_if_over(self) -> None:
        if not self._open:
            self._engine.forget(self._request.request_id)
