"""Joins a body of /v1/responses with all that it refers to, so that it can be read without the store."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from jaxinfer.errors import ParameterError
from jaxinfer.server.incoming import IncomingBody
from jaxinfer.serving.bodies.structure import check_structure
from jaxinfer.serving.errors import ErrorKind, RequestError, as_request_error
from jaxinfer.serving.requests.conversation import MAX_MESSAGES
from jaxinfer.serving.requests.response_words import renamed
from jaxinfer.serving.response_store import Chunk, ResponseStore, StoredResponse

_INSIDE = re.compile(r"input\[(\d+)\](.*)", re.DOTALL)


class Numbering(NamedTuple):
    """Numbers of items as the client counts them. before: items that were put before its own. is_text: its own input
    is a text."""

    before: int = 0
    is_text: bool = False

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise errors that name items as RequestError with the client's numbers."""
        try:
            yield
        except (RequestError, ParameterError) as error:
            told = as_request_error(error)
            raise renamed(told, self._own(told.param or "")) from None

    def _own(self, param: str) -> str:
        found = _INSIDE.match(param)
        if found is None or not self.before:
            return param
        number = int(found[1]) - self.before
        if number < 0:
            return "previous_response_id"
        return "input" if self.is_text else f"input[{number}]{found[2]}"


class OwnInput(NamedTuple):
    """The part of a body that is joined to later ones: its own items, references resolved. None are kept where the
    body says `"store": false`."""

    items: Chunk = Chunk(())
    numbering: Numbering = Numbering()


async def join_input(incoming: IncomingBody, store: ResponseStore, owner: str, most: int) -> OwnInput:
    """Put the items of the previous response before a body's own. most: bytes of both. Raises RequestError if what it
    refers to is not stored, if they are more, if there is no memory for them, or if its JSON is too complex.

    A body that is wrong stays as it is: what is wrong is told where it is decoded.
    """
    if incoming.large or _REFERS.search(incoming.data):  # a short body may refer to a long conversation
        joined = await asyncio.to_thread(_join, incoming.data, store, owner, most)
    else:
        joined = _join(incoming.data, store, owner, most)
    if joined.data is not None:
        incoming.replace(joined.data)
    return joined.own


class _Joined(NamedTuple):
    """data: None if the body refers to nothing."""

    data: bytes | None
    own: OwnInput


_REFERS = re.compile(rb"previous_response_id|item_reference|\\u")
"""Signs that a body may refer to what is stored; a name may be written by escapes."""


def _join(data: bytes | bytearray, store: ResponseStore, owner: str, most: int) -> _Joined:
    check_structure(data)
    try:
        fields = msgspec.json.decode(data, type=dict[str, Raw])
        previous_id = msgspec.json.decode(fields.get("previous_response_id", b"null"), type=str | None)
        given = _items(fields.get("input", b""))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Joined(None, OwnInput())
    history = () if previous_id is None else _previous(previous_id, store, owner).conversation
    before = [item for chunk in history for item in chunk.items]
    items = [
        item if reference is None else _stored_item(i, reference, store, owner)
        for i, (item, reference) in enumerate(zip(given.items, given.references, strict=True))
    ]
    kept = () if fields.get("store") == b"false" else tuple(items)
    own = OwnInput(Chunk(kept), Numbering(len(before), given.is_text))
    if not before and not any(given.references):
        return _Joined(None, own)
    if len(data) + sum(map(len, before)) + sum(map(len, items)) > most:
        message = f"previous_response_id: the conversation is longer than the {most} bytes of a request"
        raise RequestError(message, kind=ErrorKind.TOO_LARGE, param="previous_response_id", code="body_too_large")
    fields["input"] = Raw(b"[" + b",".join([*before, *items]) + b"]")
    return _Joined(msgspec.json.encode(fields), own)


class _Kind(msgspec.Struct):
    """The fields that tell whether an item is a reference."""

    type: str | None = None
    id: str | None = None
    role: Any = None


class _Given(NamedTuple):
    """Items as JSON, and the id of the item that each refers to, or None."""

    items: list[bytes]
    references: list[str | None]
    is_text: bool = False


def _items(raw: bytes | Raw) -> _Given:
    """The items of an input. Raises DecodeError, early, if it is neither a text nor a list of objects."""
    if bytes(raw).startswith(b'"'):
        return _Given([b'{"type":"message","role":"user","content":' + bytes(raw) + b"}"], [None], is_text=True)
    kinds = msgspec.json.decode(raw, type=list[_Kind])
    if len(kinds) > MAX_MESSAGES:
        raise msgspec.DecodeError("there are too many")
    items = [bytes(item) for item in msgspec.json.decode(raw, type=list[Raw])]
    return _Given(items, [kind.id if _is_reference(kind) else None for kind in kinds])


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
