"""Whatever JSON a client sends, it gets an answer or an error of its own: never a failure of the server."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.engine.types import ModelInfo
from jaxinfer.errors import JaxinferError
from jaxinfer.server.errors import status_of
from jaxinfer.serving.bodies.chat_schema import ChatBody
from jaxinfer.serving.bodies.decode import check_supported, decode_body
from jaxinfer.serving.bodies.schema import CompletionBody
from jaxinfer.serving.bodies.unknown_fields import UnknownFields
from jaxinfer.serving.errors import RequestError, as_request_error
from jaxinfer.serving.requests.params import chat_params, completion_params, fit_length
from jaxinfer.text.defaults import GenerationDefaults

INFO = ModelInfo("m", 256, 300, 8, 16, 64)
DEFAULTS = GenerationDefaults()
UNKNOWN = UnknownFields()

NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-3, 30))
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=5))
VALUES = st.recursive(
    SCALARS, lambda inside: st.one_of(st.lists(inside, max_size=3), st.dictionaries(st.text(max_size=4), inside)),
    max_leaves=6,
)  # fmt: skip


def bodies(kind: Any, required: dict[str, Any]) -> st.SearchStrategy[bytes]:
    fields = st.sampled_from(kind.__struct_fields__)
    some = st.dictionaries(fields, st.one_of(NUMBERS, VALUES), max_size=4)
    return some.map(lambda body: json.dumps({**required, **body}).encode())


def read_completion(data: bytes) -> int:
    body = decode_body(data, CompletionBody, UNKNOWN)[0]
    check_supported(body)
    params = completion_params(body, DEFAULTS, INFO)
    assert fit_length([1], params, INFO, param="prompt", asked_by=None).max_tokens in range(1, 256)
    return 200


def read_chat(data: bytes) -> int:
    body = decode_body(data, ChatBody, UNKNOWN)[0]
    check_supported(body)
    assert chat_params(body, DEFAULTS, INFO).n in range(1, 129)
    return 200


def status(read: Callable[[bytes], int], data: bytes) -> int:
    try:
        return read(data)
    except JaxinferError as error:
        return status_of(as_request_error(error))
    except RequestError as error:
        return status_of(error)


@pytest.mark.long
@given(data=bodies(CompletionBody, {"prompt": "a"}))
def test_any_completion_body(data: bytes) -> None:
    assert status(read_completion, data) in (200, 400)


@given(data=bodies(ChatBody, {"messages": [{"role": "user", "content": "x"}]}))
def test_any_chat_body(data: bytes) -> None:
    assert status(read_chat, data) in (200, 400)


@given(data=st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    assert status(read_completion, data) in (200, 400)
