"""JoinedInput: a body of /v1/responses with all that it refers to, so that it can be read without the store."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from jaxinfer.errors import ParameterError
from jaxinfer.serving.bodies.structure import check_structure, is_large
from jaxinfer.serving.errors import ErrorKind, RequestError, as_request_error
from jaxinfer.serving.requests.conversation import MAX_MESSAGES
from jaxinfer.serving.requests.response_words import renamed
from jaxinfer.serving.response_store import Chunk, ResponseStore, StoredResponse

_INSIDE = re.compile(r"input\[(\d+)\](.*)", re.DOTALL)


class JoinedInput(NamedTuple):
    """A body, whose input has the items of the previous response before its own. own: its own items, references
    resolved. is_text: its own input is a text."""

    data: bytes | bytearray
    history: tuple[Chunk, ...] = ()
    own: Chunk = Chunk(())
    is_text: bool = False

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise errors of items as the client has numbered them."""
        try:
            yield
        except (RequestError, ParameterError) as error:
            told = as_request_error(error)
            raise renamed(told, self._own_words(told.param or "")) from None

    def _own_words(self, param: str) -> str:
        found = _INSIDE.match(param)
        if found is None or not self.history:
            return param
        number = int(found[1]) - sum(len(chunk.items) for chunk in self.history)
        if number < 0:
            return "previous_response_id"
        return "input" if self.is_text else f"input[{number}]{found[2]}"


async def join_input(data: bytes | bytearray, store: ResponseStore, owner: str) -> JoinedInput:
    """Join a body with what it refers to. Raises RequestError if that is not stored, or if its JSON is too complex.

    A body that is wrong stays as it is: what is wrong is told where it is decoded.
    """
    if is_large(data):
        return await asyncio.to_thread(_join, data, store, owner)
    return _join(data, store, owner)


def _join(data: bytes | bytearray, store: ResponseStore, owner: str) -> JoinedInput:
    check_structure(data)
    try:
        fields = msgspec.json.decode(data, type=dict[str, Raw])
        previous_id = msgspec.json.decode(fields.get("previous_response_id", b"null"), type=str | None)
        given = msgspec.json.decode(fields.get("input", b""), type=str | list[Raw])
        if len(given) > MAX_MESSAGES and not isinstance(given, str):
            return JoinedInput(data)
        references = {} if isinstance(given, str) else _references(given)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return JoinedInput(data)
    history = () if previous_id is None else _previous(previous_id, store, owner).conversation
    if isinstance(given, str):
        items = [msgspec.json.encode({"type": "message", "role": "user", "content": given})]
    else:
        resolved = {i: _stored_item(i, item_id, store, owner) for i, item_id in references.items()}
        items = [resolved.get(i) or bytes(item) for i, item in enumerate(given)]
    own = Chunk(tuple(items))
    if history or references:
        every = [item for chunk in (*history, own) for item in chunk.items]
        fields["input"] = Raw(b"[" + b",".join(every) + b"]")
        data = msgspec.json.encode(fields)
    return JoinedInput(data, history, own, isinstance(given, str))


class _Kind(msgspec.Struct):
    """The fields that tell whether an item is a reference."""

    type: str | None = None
    id: str | None = None
    role: Any = None


def _references(items: list[Raw]) -> dict[int, str]:
    """Ids of items that are referred to, by the number of the reference."""
    kinds = (msgspec.json.decode(item, type=_Kind) for item in items)
    return {i: kind.id for i, kind in enumerate(kinds) if kind.id is not None and _is_reference(kind)}


def _is_reference(kind: _Kind) -> bool:
    return kind.type == "item_reference" or (kind.type is None and kind.role is None)


def _previous(response_id: str, store: ResponseStore, owner: str) -> StoredResponse:
    found = store.get(owner, response_id)
    if found is None:
        message = f"previous_response_id: a response {response_id[:64]!r} is not found{store.note}"
        raise RequestError(message, param="previous_response_id", code="previous_response_not_found")
    return found


def _stored_item(number: int, item_id: str, store: ResponseStore, owner: str) -> bytes:
    found = store.item(owner, item_id)
    if found is None:
        param = f"input[{number}].id"
        message = f"{param}: an item {item_id[:64]!r} is not found in stored responses{store.note}"
        raise RequestError(message, kind=ErrorKind.NOT_FOUND, param=param, code="item_not_found")
    return found
