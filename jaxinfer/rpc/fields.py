"""Fields of a message on the wire, looked at before anything is built of them."""

import functools
from typing import NamedTuple

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from jaxinfer.serving.errors import RequestError

MAX_FIELDS = 16_384
"""Fields of one message and the messages in it; packed numbers are one field."""

MAX_NUMBERS = 2_000_000
"""Packed numbers of one message, all fields together."""

_MAX_DEPTH = 100
_MAX_TAG = 2**32
_VARINT_BYTES = 10

_VARINT, _EIGHT, _SIZED, _FOUR = 0, 1, 2, 5
_SIZES = {_EIGHT: 8, _FOUR: 4}
_WIRE_TYPES = {
    FieldDescriptor.TYPE_DOUBLE: _EIGHT,
    FieldDescriptor.TYPE_FIXED64: _EIGHT,
    FieldDescriptor.TYPE_SFIXED64: _EIGHT,
    FieldDescriptor.TYPE_FLOAT: _FOUR,
    FieldDescriptor.TYPE_FIXED32: _FOUR,
    FieldDescriptor.TYPE_SFIXED32: _FOUR,
    FieldDescriptor.TYPE_STRING: _SIZED,
    FieldDescriptor.TYPE_BYTES: _SIZED,
    FieldDescriptor.TYPE_MESSAGE: _SIZED,
}


class _Field(NamedTuple):
    """wire_types: how it may be written. number: the wire type of one number of a field that may be packed; None:
    there is none. message: of a field that is one.
    """

    wire_types: frozenset[int]
    number: int | None
    message: Descriptor | None


def check_fields(data: bytes, kind: Descriptor) -> None:
    """Raises RequestError where a message of this kind has a field that this version does not know, and would ignore,
    has more fields than MAX_FIELDS or more packed numbers than MAX_NUMBERS, or cannot be read.

    NOTE: protobuf keeps unknown fields, at a price: millions of them take seconds to be listed. This walk ends at the
    first, and in a few milliseconds.
    """
    _Walk(data).message(0, len(data), kind, 0)


def invalid_message() -> RequestError:
    """The error of bytes that are no message of their kind."""
    message = "the message is not a valid protobuf of this method's request, or a string is not UTF-8"
    return RequestError(message, code="invalid_message")


class _Walk:
    def __init__(self, data: bytes):
        self._data = data
        self._fields_left = MAX_FIELDS
        self._numbers_left = MAX_NUMBERS

    def message(self, at: int, end: int, kind: Descriptor, depth: int) -> None:
        """Walks over the fields between two places."""
        if depth > _MAX_DEPTH:
            raise invalid_message()
        known = _fields(kind)
        while at < end:
            tag, at = self._varint(at)
            self._count(tag, kind)
            number, wire_type = tag >> 3, tag & 7
            field = known.get(number)
            if field is None or wire_type not in field.wire_types:
                name = f"{kind.name}.{number}"
                raise RequestError(f"{name}: is a field that this server does not know", param=name)
            begin, at = self._value(at, wire_type)
            if at > end:
                raise invalid_message()
            if field.message is not None:
                self.message(begin, at, field.message, depth + 1)
            elif field.number is not None and wire_type == _SIZED:
                self._count_numbers(begin, at, field.number, kind)

    def _count(self, tag: int, kind: Descriptor) -> None:
        if tag >= _MAX_TAG:
            raise invalid_message()
        if not self._fields_left:
            message = f"{kind.name}: has more than {MAX_FIELDS} fields; repeated numbers must be packed"
            raise RequestError(message, param=kind.name)
        self._fields_left -= 1

    def _count_numbers(self, begin: int, end: int, wire_type: int, kind: Descriptor) -> None:
        if wire_type == _VARINT:
            packed = np.frombuffer(self._data, np.uint8, end - begin, begin)
            self._numbers_left -= int(np.count_nonzero(packed < 0x80))  # the last bytes of numbers
        else:
            self._numbers_left -= (end - begin) // _SIZES[wire_type]
        if self._numbers_left < 0:
            message = f"{kind.name}: has more than {MAX_NUMBERS} numbers"
            raise RequestError(message, param=kind.name)

    def _value(self, at: int, wire_type: int) -> tuple[int, int]:
        """Return the start and the end of a value."""
        if wire_type == _SIZED:
            size, at = self._varint(at)
            return at, at + size
        if wire_type == _VARINT:
            return at, self._varint(at)[1]
        return at, at + _SIZES[wire_type]

    def _varint(self, at: int) -> tuple[int, int]:
        """A number and the place after it."""
        if at < len(self._data) and (number := self._data[at]) < 0x80:
            return number, at + 1  # as most are
        number = 0
        for place, byte in enumerate(self._data[at : at + _VARINT_BYTES]):
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return number, at + place + 1
        raise invalid_message()


@functools.cache
def _fields(kind: Descriptor) -> dict[int, _Field]:
    # Descriptors of newer and older versions of protobuf tell a repeated field differently; their messages do not.
    declared = DescriptorProto()
    kind.CopyToProto(declared)
    return {field.number: _field(field, kind.fields_by_number[field.number].message_type) for field in declared.field}


def _field(declared: FieldDescriptorProto, message: Descriptor | None) -> _Field:
    alone = _WIRE_TYPES.get(declared.type, _VARINT)
    repeated = declared.label == FieldDescriptorProto.LABEL_REPEATED
    packed = repeated and alone != _SIZED
    return _Field(frozenset((alone, _SIZED) if packed else (alone,)), alone if packed else None, message)
