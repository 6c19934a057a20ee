"""Reply: what an endpoint makes of a generation, as chunks of a stream or whole."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec import UnsetType

from jaxinfer.server.logprobs import LogprobForm
from jaxinfer.serving.bodies.schema import GenerateBody
from jaxinfer.serving.context import Context
from jaxinfer.serving.generation import Generation, PromptStep
from jaxinfer.serving.usage import Usage


class Reply(ABC):
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

    @abstractmethod
    def first(self) -> list[Any]:
        """Choices of the first chunks, before any token."""

    @abstractmethod
    def choices(self, step: PromptStep) -> list[Any]:
        """Return the choices of a step, without those to which it adds nothing visible."""

    def chunk(self, choices: list[Any], usage: Usage | UnsetType | None) -> Any:
        """An event of a stream. As in vLLM, those that end a choice or the stream have the fingerprint."""
        event = self._chunk_type(*self._head, choices, usage)
        if not choices or any(choice.finish_reason is not None for choice in choices):
            event.system_fingerprint = self._fingerprint
        return event

    @abstractmethod
    def whole(self, parts: list[Any]) -> bytes:
        """The whole reply from all choices of all steps, as JSON."""

    def usage(self) -> Usage:
        """Tokens so far."""
        return self._generation.usage()


def by_index(parts: Sequence[Any]) -> dict[int, list[Any]]:
    """Parts of choices, by their choice."""
    found: dict[int, list[Any]] = {}
    for part in parts:
        found.setdefault(part.index, []).append(part)
    return found
