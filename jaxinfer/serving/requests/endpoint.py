"""Endpoint: how a request's body becomes engine requests, in an API process or, where it is large, in a worker."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from jaxinfer.engine.types import GenerateRequest, ModelInfo
from jaxinfer.serving.bodies.schema import GenerateBody, WithoutEffect
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.errors import ErrorKind, RequestError
from jaxinfer.serving.tenant import USER_CHARS
from jaxinfer.text import TextProcessor
from jaxinfer.text.answer.parser import AnswerFormat

Wire = TypeVar("Wire", bound=msgspec.Struct)
Generating = TypeVar("Generating", bound=GenerateBody)

Prepared = list[tuple[GenerateRequest, str | None]]
"""Engine requests without id and owner, each with the text of its prompt where it came as one."""

DEFAULT_MODEL = "default"
"""A name that every server takes for the model it serves."""

_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


@dataclass(frozen=True)
class ModelSide:
    """The context that a body is checked and tokenised with. answer_form: the format in which answers are parsed."""

    text: TextProcessor
    info: ModelInfo
    options: ServerConfig
    model_name: str
    answer_form: AnswerFormat

    def check_model(self, name: str | None) -> None:
        """Raises RequestError where a request names another model; none, and `default`, mean this one."""
        served = self.options.served_model_name or (self.model_name,)
        if name and name not in (DEFAULT_MODEL, *served):
            are = "is" if len(served) == 1 else "are"
            message = f"model: {name!r} is not served here; {', '.join(map(repr, served))} {are}"
            raise RequestError(message, kind=ErrorKind.NOT_FOUND, param="model", code="model_not_found")


@dataclass(frozen=True)
class Endpoint(Generic[Wire]):
    """An endpoint that generates.

    check: raises RequestError for what is wrong whatever the prompt is; returns fields that have no effect here.
    prepare: tokenises a body that was checked, and makes its engine requests.
    slim: a body without what its prompts were made of, and without what has no effect.
    as_openai: the same request, perhaps without its prompt, as OpenAI's completions and chats have it.
    """

    name: str
    kind: type[Wire]
    check: Callable[[Wire, ModelSide], list[str]]
    prepare: Callable[[Wire, ModelSide], Awaitable[Prepared]]
    slim: Callable[[Wire], Wire]
    as_openai: Callable[[Wire], GenerateBody]


@dataclass(frozen=True)
class TextEndpoint(Generic[Wire]):
    """An endpoint that answers from the text side alone, with JSON."""

    name: str
    kind: type[Wire]
    answer: Callable[[Wire, ModelSide], Awaitable[bytes]]


@dataclass(frozen=True)
class Choice:
    """An endpoint that is one of others, as its body has it."""

    name: str
    choose: Callable[[bytes | bytearray], Endpoint]
    among: tuple[Endpoint, ...]


def check_common(body: GenerateBody, side: ModelSide) -> list[str]:
    """`Endpoint.check` of what all bodies have: first the model, then the id."""
    side.check_model(body.model)
    if body.request_id is not None:
        checked_id(body.request_id, "request_id")
    return []


def is_allowed_id(given: str) -> bool:
    """True where a reply may be called so."""
    return _ID.fullmatch(given) is not None


def checked_id(given: str, name: str) -> str:
    """The id that a request gives itself. name: what errors call it. Raises RequestError."""
    if not is_allowed_id(given):
        message = f"{name}: must have 1 to 128 characters, letters, digits and `._:/+=-`"
        raise RequestError(message, param=name)
    return given


def as_it_is(body: Generating) -> Generating:
    """`Endpoint.as_openai` of OpenAI's own bodies."""
    return body


def without_effect_dropped(body: Generating) -> Generating:
    """A body without the fields that were checked and have no effect, and of its `user` only what has one."""
    user = body.user[:USER_CHARS] if isinstance(body.user, str) else None
    return msgspec.structs.replace(body, **dict.fromkeys(WithoutEffect.__struct_fields__), user=user)


def has_no_effect(name: str, reason: str) -> RequestError:
    """The error where the policy is to refuse a field that has no effect here."""
    return RequestError(f"{name}: has no effect: {reason}", param=name)
