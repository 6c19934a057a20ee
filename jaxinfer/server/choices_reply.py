"""ChoicesReply: replies in the form of OpenAI's completions, whose parts are choices."""

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec import UNSET, UnsetType

from jaxinfer.server.errors import error_body
from jaxinfer.server.logprobs import LogprobForm
from jaxinfer.server.reply import Event, Reply
from jaxinfer.serving.bodies.schema import GenerateBody, StreamOptions
from jaxinfer.serving.context import Context
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.generation import Generation, PromptStep
from jaxinfer.serving.usage import Usage


class ChoicesReply(Reply):
    """One reply. name: its id. Its choices and chunks have the form of one endpoint."""

    _chunk_type: ClassVar[type[Any]]

    def __init__(self, name: str, context: Context, body: GenerateBody, generation: Generation):
        self._head = name, int(time.time()), context.model_name
        self._fingerprint = context.fingerprint
        asked = body.return_tokens_as_token_ids
        by_id = context.options.return_tokens_as_token_ids if asked is None else asked
        self._logprobs = LogprobForm(context.text.tokenizer, by_id=by_id)
        self._generation = generation
        self._n = 1 if body.n is None else body.n
        self._stream = _stream_options(body, context.options.enable_force_include_usage)
        self._parts: list[Any] = []

    @abstractmethod
    def first(self) -> list[Any]:
        """Choices of the first chunks, before any token."""

    @abstractmethod
    def choices(self, step: PromptStep) -> list[Any]:
        """Return the choices of a step, without those to which it adds nothing visible."""

    @abstractmethod
    def joined(self, parts: list[Any]) -> bytes:
        """The whole reply from all choices of all steps, as JSON."""

    def usage(self) -> Usage:
        """Tokens so far."""
        return self._generation.usage()

    def begin(self) -> list[Event]:
        return self._chunks(self.first())

    def events(self, step: PromptStep) -> list[Event]:
        return self._chunks(self.choices(step))

    def end(self) -> list[Event]:
        last = [Event(self.chunk([], self.usage()))] if self._stream.include_usage else []
        return [*last, Event(b"[DONE]")]

    def fail(self, error: RequestError) -> list[Event]:
        return [Event(error_body(error))]  # no `[DONE]` follows

    def take(self, step: PromptStep) -> None:
        self._parts += self.choices(step)

    def whole(self) -> bytes:
        return self.joined(self._parts)

    def chunk(self, choices: list[Any], usage: Usage | UnsetType | None) -> Any:
        """An event of a stream. As in vLLM, those that end a choice or the stream have the fingerprint."""
        event = self._chunk_type(*self._head, choices, usage)
        if not choices or any(choice.finish_reason is not None for choice in choices):
            event.system_fingerprint = self._fingerprint
        return event

    def _chunks(self, choices: list[Any]) -> list[Event]:
        return [Event(self.chunk([choice], self._usage_so_far())) for choice in choices]

    def _usage_so_far(self) -> Usage | UnsetType | None:
        if self._stream.continuous_usage_stats:
            return self.usage()
        # OpenAI's chunks say `usage: null` until the last one tells it.
        return None if self._stream.include_usage else UNSET


def _stream_options(body: GenerateBody, always_usage: bool) -> StreamOptions:
    """Timings come with the usage; continuous usage needs `include_usage`, as in vLLM."""
    if always_usage:
        return StreamOptions(include_usage=True, continuous_usage_stats=True)
    asked = body.stream_options or StreamOptions()
    include = asked.include_usage or body.wants_timings
    return StreamOptions(include_usage=include, continuous_usage_stats=include and asked.continuous_usage_stats)


def by_index(parts: Sequence[Any]) -> dict[int, list[Any]]:
    """Parts of choices, by their choice."""
    found: dict[int, list[Any]] = {}
    for part in parts:
        found.setdefault(part.index, []).append(part)
    return found
