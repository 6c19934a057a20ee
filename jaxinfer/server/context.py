"""What every handler needs."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiohttp import web

from jaxinfer.engine.client.base import EngineClient
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.metrics import ServerMetrics
from jaxinfer.sampling import SamplingParams
from jaxinfer.server.admission import Admission
from jaxinfer.server.auth import API_KEY
from jaxinfer.server.config import ServerConfig
from jaxinfer.server.endpoint import ModelSide
from jaxinfer.server.errors import ApiError
from jaxinfer.server.generation import Generation
from jaxinfer.server.request_id import checked_id, is_allowed_id
from jaxinfer.server.schema import CompletionBody, GenerateBody
from jaxinfer.server.tenant import key_salt, tenant_of
from jaxinfer.server.tracing import RequestSpan, Tracing
from jaxinfer.server.unknown_fields import UnknownFields
from jaxinfer.server.workers import Workers
from jaxinfer.text import TextProcessor
from jaxinfer.text.answer import THINK, THOUGHT, AnswerFormat


@dataclass(frozen=True)
class Context:
    """The engine, the model's text side, and the server's settings."""

    client: EngineClient
    text: TextProcessor
    options: ServerConfig
    model_name: str
    metrics: ServerMetrics
    answer_form: AnswerFormat
    admission: Admission
    unknown_fields: UnknownFields
    fingerprint: str
    workers: Workers
    tracing: Tracing | None = None
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def side(self) -> ModelSide:
        """What bodies are checked and tokenised with."""
        return ModelSide(self.text, self.client.info, self.options, self.model_name, self.answer_form)

    @property
    def reasoning_tags(self) -> tuple[int, int] | None:
        """Ids of `<think>` and `</think>`; None where the tokenizer writes them with several tokens."""
        ids = self.text.tokenizer.added_ids
        return (ids[THINK], ids[THOUGHT]) if THINK in ids and THOUGHT in ids else None

    def names_tokens_by_id(self, body: GenerateBody) -> bool:
        """Whether log-probabilities call tokens `token_id:5`."""
        given = body.return_tokens_as_token_ids
        return self.options.return_tokens_as_token_ids if given is None else given

    def generation(
        self,
        prompts: Sequence[list[int]],
        params: Sequence[SamplingParams],
        body: GenerateBody,
        request: web.Request | None = None,
        *,
        api_key: str = "",
    ) -> Generation:
        """The engine requests of one request. Raises ApiError where they are too many or too large.

        request: that of HTTP, where it came so. api_key: the key that it came by, where it came otherwise.
        """
        if request is not None:
            api_key = request.get(API_KEY, "")
        self._check_size(prompts, params, body)
        priority = self._priority(body, request)
        salt, tenant = self._cache_salt(body, api_key), tenant_of(api_key, body.user)
        name = uuid.uuid4().hex  # a client's own id need not be the only one of its kind
        requests = [
            GenerateRequest(f"{name}-{i}", prompt, param, priority, salt, tenant)
            for i, (prompt, param) in enumerate(zip(prompts, params, strict=True))
        ]
        return Generation(
            self.client,
            self.text.tokenizer,
            self.metrics,
            requests,
            tells_timings=body.wants_timings,
            span=self._span(body, request),
        )

    def _cache_salt(self, body: GenerateBody, api_key: str) -> str:
        """Requests of one salt share KV pages; with several keys each has its own, unless they are to share them."""
        own = len(self.options.api_keys) > 1 and not self.options.share_cache_across_keys
        return key_salt(api_key, body.cache_salt) if own else body.cache_salt or ""

    def _priority(self, body: GenerateBody, request: web.Request | None) -> int:
        """That of the request; 0, and reported, where the engine's scheduling policy reads none."""
        policy = self.client.info.scheduling_policy
        if not body.priority or policy == "priority":
            return body.priority or 0
        if request is None:
            self.unknown_fields.report(["priority"])
        else:
            report_ignored(request, "priority", f"the scheduling policy is {policy}")
        return 0

    def _span(self, body: GenerateBody, request: web.Request | None) -> RequestSpan | None:
        if self.tracing is None:
            return None
        operation = "text_completion" if isinstance(body, CompletionBody) else "chat"
        if request is None:
            return self.tracing.begin(operation, None, {})
        return self.tracing.begin(operation, request.get(REQUEST_ID), request.headers)

    def _check_size(self, prompts: Sequence[list[int]], params: Sequence[SamplingParams], body: GenerateBody) -> None:
        choices = sum(param.n for param in params)
        if choices > self.options.max_choices:
            name = "best_of" if isinstance(body, CompletionBody) and body.best_of else "n"
            message = f"{name}: {choices} choices over all prompts; at most {self.options.max_choices} are allowed"
            raise ApiError(400, message, param=name)
        room = self.client.info.max_model_len
        entries = 0
        for prompt, param in zip(prompts, params, strict=True):
            if param.logprobs is not None:
                entries += param.n * (room if param.max_tokens is None else param.max_tokens) * (param.logprobs + 1)
            if param.prompt_logprobs is not None:
                # Every choice of a completion tells them.
                copies = param.n if isinstance(body, CompletionBody) else 1
                entries += copies * len(prompt) * (param.prompt_logprobs + 1)
        if entries > self.options.max_logprob_entries:
            message = (
                f"logprobs: up to {entries} log-probabilities in one reply; at most {self.options.max_logprob_entries} "
                "are allowed: ask for fewer tokens, choices or log-probabilities"
            )
            raise ApiError(400, message, param="logprobs")


CONTEXT = web.AppKey("context", Context)
REQUEST_ID = web.RequestKey("request_id", str)
"""Where a request keeps its id for the response's header."""

IGNORED_FIELDS = web.RequestKey("ignored_fields", list)
"""Where a request keeps the names of its fields without effect, for the response's header."""


def has_no_effect(name: str, reason: str) -> ApiError:
    """The error where the policy is to refuse a field that has no effect here."""
    return ApiError(400, f"{name}: has no effect: {reason}", param=name)


def report_ignored(request: web.Request, name: str, reason: str) -> None:
    """Reports a field that has no effect here. Raises ApiError where the policy is to refuse such fields."""
    unknown = request.app[CONTEXT].unknown_fields
    if unknown.refuses:
        raise has_no_effect(name, reason)
    request[IGNORED_FIELDS] = [*request.get(IGNORED_FIELDS, []), *unknown.report([name])]


def reply_id(kind: str, request: web.Request, body: GenerateBody) -> str:
    """A reply's name: `kind` and what the request calls itself (`request_id`, `X-Request-Id`), else one of its own.

    The header X-Request-Id of the response tells it. Raises ApiError.
    """
    chosen = _said_id(request, body) or uuid.uuid4().hex
    request[REQUEST_ID] = chosen
    return f"{kind}-{chosen}"


def told_id(request: web.Request) -> str | None:
    """What the response's X-Request-Id says: the reply's id, or what the request brought where there is no reply."""
    given = request.headers.get("X-Request-Id", "")
    return request.get(REQUEST_ID) or (given if is_allowed_id(given) else None)


def _said_id(request: web.Request, body: GenerateBody) -> str | None:
    for name, given in (("request_id", body.request_id), ("X-Request-Id", request.headers.get("X-Request-Id"))):
        if given is not None:
            return checked_id(given, name)
    return None
