"""Reply: what an endpoint makes of a generation, as events of a stream or whole."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.generation import PromptStep


class Event(NamedTuple):
    """A server-sent event. data: JSON, or what is sent as it is. name: of the line `event:`; None: there is none."""

    data: msgspec.Struct | bytes
    name: str | None = None


class Reply(ABC):
    """One reply, in the form of one endpoint. It is streamed, or taken step by step and sent whole.

    headers: of the response, beside those that every response has.
    """

    headers: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def begin(self) -> list[Event]:
        """Events before any token, sent with those of the first step."""

    @abstractmethod
    def events(self, step: PromptStep) -> list[Event]:
        """Return the events of a step; none where it adds nothing visible."""

    @abstractmethod
    def end(self) -> list[Event]:
        """Events behind the last step of a stream that ends well."""

    @abstractmethod
    def fail(self, error: RequestError) -> list[Event]:
        """Events behind the last step of a stream that ends with an error."""

    @abstractmethod
    def take(self, step: PromptStep) -> None:
        """Keep what a step adds to the whole reply."""

    @abstractmethod
    def whole(self) -> bytes:
        """The whole reply from all steps that were taken, as JSON."""
