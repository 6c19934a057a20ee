"""Context: what the requests of one API process share."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from jaxinfer.engine.client.base import EngineClient
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.metrics import ServerMetrics
from jaxinfer.serving.admission import RequestLimit
from jaxinfer.serving.bodies.schema import CompletionBody, GenerateBody
from jaxinfer.serving.bodies.unknown_fields import UnknownFields
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.deadline import max_wait
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.generation import Generation
from jaxinfer.serving.requests.endpoint import ModelSide
from jaxinfer.serving.tenant import key_salt, tenant_of
from jaxinfer.serving.tracing import RequestSpan, Tracing
from jaxinfer.serving.workers.pool import Workers
from jaxinfer.text import TextProcessor
from jaxinfer.text.answer.harmony import CHANNEL, MESSAGE, AnalysisTokens
from jaxinfer.text.answer.parser import AnswerFormat
from jaxinfer.text.answer.thoughts import ReasoningTokens


class Caller(NamedTuple):
    """Who sent a request. api_key: `` where none is asked for. request_id: what its span is called.

    headers: of which the span reads `traceparent`. report: called with a field that has no effect and the reason; may
    raise RequestError. timeout: seconds after which the client gives up; None: it doesn't say.
    """

    api_key: str
    request_id: str | None
    headers: Mapping[str, str]
    report: Callable[[str, str], object]
    timeout: float | None


@dataclass(frozen=True)
class Context:
    """The engine, the model's text side, and the server's settings."""

    client: EngineClient
    text: TextProcessor
    options: ServerConfig
    model_name: str
    metrics: ServerMetrics
    answer_form: AnswerFormat
    admission: RequestLimit
    unknown_fields: UnknownFields
    fingerprint: str
    workers: Workers
    tracing: Tracing | None = None
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def side(self) -> ModelSide:
        """The context that bodies are checked and tokenised with."""
        return ModelSide(self.text, self.client.info, self.options, self.model_name, self.answer_form)

    def reasoning_tokens(self, form: AnswerFormat, *, thinking: bool) -> ReasoningTokens | AnalysisTokens | None:
        """Counts an answer's reasoning; None where the tokenizer writes its tags with several tokens, or it has none.

        thinking: the prompt itself has opened `<think>`.
        """
        ids = self.text.tokenizer.added_ids
        if form.thoughts is None:
            return None
        begin, end = (CHANNEL, MESSAGE) if form.channels else form.thoughts
        if begin not in ids or end not in ids:
            return None
        if form.channels:
            return AnalysisTokens(ids, self.text.tokenizer.encode("analysis", add_special_tokens=False))
        return ReasoningTokens(ids[begin], ids[end], thinking=thinking)

    def generation(self, requests: Sequence[GenerateRequest], body: GenerateBody, caller: Caller) -> Generation:
        """The generation of a body's engine requests, which get their ids and their owner here.

        Raises RequestError where they are too many or too large.
        """
        self._check_size(requests, body)
        priority = self._priority(body, caller)
        salt, tenant = self._cache_salt(body, caller.api_key), tenant_of(caller.api_key, body.user)
        # Once the first prompt is served the others are waited for: to drop all for one that is late would waste them.
        name = uuid.uuid4().hex  # a client's own id need not be the only one of its kind
        deadline = self.options.default_deadline
        owned = [
            replace(
                request,
                request_id=f"{name}-{i}",
                priority=priority,
                cache_salt=salt,
                tenant=tenant,
                max_wait=None if i else max_wait(caller.timeout, deadline),
                max_expected_wait=None if i else deadline or None,
            )
            for i, request in enumerate(requests)
        ]
        return Generation(
            self.client,
            self.text.tokenizer,
            self.metrics,
            owned,
            tells_timings=body.wants_timings,
            span=self._span(body, caller),
        )

    def _cache_salt(self, body: GenerateBody, api_key: str) -> str:
        """Requests of one salt share KV blocks; with several keys each has its own, unless they are to share them."""
        own = len(self.options.api_keys) > 1 and not self.options.share_cache_across_keys
        return key_salt(api_key, body.cache_salt) if own else body.cache_salt or ""

    def _priority(self, body: GenerateBody, caller: Caller) -> int:
        """Return the request's priority; 0, and a report, if the engine's scheduling policy reads none."""
        policy = self.client.info.scheduling_policy
        if not body.priority or policy == "priority":
            return body.priority or 0
        caller.report("priority", f"the scheduling policy is {policy}")
        return 0

    def _span(self, body: GenerateBody, caller: Caller) -> RequestSpan | None:
        if self.tracing is None:
            return None
        operation = "text_completion" if isinstance(body, CompletionBody) else "chat"
        return self.tracing.begin(operation, caller.request_id, caller.headers)

    def _check_size(self, requests: Sequence[GenerateRequest], body: GenerateBody) -> None:
        choices = sum(request.sampling.n for request in requests)
        if choices > self.options.max_choices:
            name = "best_of" if isinstance(body, CompletionBody) and body.best_of else "n"
            message = f"{name}: {choices} choices over all prompts; at most {self.options.max_choices} are allowed"
            raise RequestError(message, param=name)
        room = self.client.info.max_model_len
        entries = 0
        for request in requests:
            param = request.sampling
            if param.logprobs is not None:
                entries += param.n * (room if param.max_tokens is None else param.max_tokens) * (param.logprobs + 1)
            if param.prompt_logprobs is not None:
                # Every choice of a completion tells them.
                copies = param.n if isinstance(body, CompletionBody) else 1
                entries += copies * len(request.prompt_token_ids) * (param.prompt_logprobs + 1)
        if entries > self.options.max_logprob_entries:
            message = (
                f"logprobs: up to {entries} log-probabilities in one reply; at most {self.options.max_logprob_entries} "
                "are allowed: ask for fewer tokens, choices or log-probabilities"
            )
            raise RequestError(message, param="logprobs")
