"""Fields on the wire: what protobuf's own parser makes of the same bytes."""

import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message

from jaxinfer.rpc import jaxinfer_pb2 as pb
from jaxinfer.rpc.fields import MAX_FIELDS, MAX_NUMBERS, check_fields
from jaxinfer.serving.errors import RequestError
from tests.rpc.fuzz import KINDS, bytes_of, drawn


def refusal(data: bytes, kind: type[Message]) -> RequestError | None:
    described: Any = kind.DESCRIPTOR
    try:
        check_fields(data, described)
    except RequestError as error:
        return error
    return None


def known_alone(data: bytes, kind: type[Message]) -> bool:
    """Whether the parser reads the bytes and finds nothing that it does not know."""
    try:
        message = kind.FromString(data)
    except DecodeError:
        return False
    whole = message.ByteSize()
    message.DiscardUnknownFields()
    return message.ByteSize() == whole


@pytest.mark.parametrize("kind", KINDS)
def test_the_walk_and_the_parser_agree(kind: type[Message]) -> None:
    draw = random.Random(5)
    verdicts = {True: 0, False: 0}
    for _ in range(3_000):
        data = bytes_of(draw, drawn(draw, kind))
        error, known = refusal(data, kind), known_alone(data, kind)
        verdicts[known] += 1
        if error is None:
            # What is left to the parser: strings that are not UTF-8, and nothing else.
            assert known or _not_utf8(data, kind), data
        else:
            assert not known, (data, error.message)
    assert min(verdicts.values()) > 100


def _not_utf8(data: bytes, kind: type[Message]) -> bool:
    try:
        kind.FromString(data)
    except DecodeError:
        return True
    return False


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\xc0\x3e\x01", "GenerateRequest.1000"),
        (b"\x28\x01" + b"\xc0\x3e\x01" * 3, "GenerateRequest.1000"),
        (b"\x12\x02\x10\x01", "TokenIds.2"),
        (b"\x82\x01\x04\x08\x01\x18\x01", "LogitBiasEntry.3"),
        (b"\x29" + bytes(8), "GenerateRequest.5"),  # n as eight bytes
    ],
)
def test_an_unknown_field_is_named_where_it_is(data: bytes, name: str) -> None:
    error = refusal(data, pb.GenerateRequest)
    assert error is not None
    assert (error.param, error.message) == (name, f"{name}: is a field that this server does not know")


def test_fields_are_counted() -> None:
    assert refusal(b"\x10\x01" * MAX_FIELDS, pb.TokenizeRequest) is None
    error = refusal(b"\x10\x01" * (MAX_FIELDS + 1), pb.TokenizeRequest)
    assert error is not None
    assert "16384 fields" in error.message
    unpacked = b"\x08\x01" * MAX_FIELDS  # and the message that holds them
    nested = b"\x12" + b"\x80\x80\x02" + unpacked
    error = refusal(nested, pb.GenerateRequest)
    assert error is not None
    assert error.param == "TokenIds"


def test_packed_numbers_are_counted() -> None:
    ids = [300, 5] * (MAX_NUMBERS // 2)
    assert refusal(pb.DetokenizeRequest(token_ids=ids).SerializeToString(), pb.DetokenizeRequest) is None
    error = refusal(pb.DetokenizeRequest(token_ids=[*ids, 1]).SerializeToString(), pb.DetokenizeRequest)
    assert error is not None
    assert (error.param, "2000000 numbers" in error.message) == ("DetokenizeRequest", True)
