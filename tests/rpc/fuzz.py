"""Sends a gRPC server what nobody foresaw: wrong values, unknown fields, damaged messages, and bytes that are none.

    python -m tests.rpc.fuzz [--calls 20000] [--seed N]

The server is one of this process, before a FakeEngine. Ends with 1 where a status blames the server, or an answer took
five seconds.
"""

import argparse
import asyncio
import importlib.util
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from jaxinfer.rpc import jaxinfer_pb2
from jaxinfer.serving.bodies.structure import LARGE_BYTES
from tests.rpc.public import Public, public
from tests.text.folders import byte_level_folder

MOST_SECONDS = 5.0
_AT_ONCE = 16
_CALL_SECONDS = 30.0
_BLAMES = ("INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED", "UNAVAILABLE", "DATA_LOSS")
_LARGE_SHARE = 0.01

_SERVICES = [jaxinfer_pb2.DESCRIPTOR.services_by_name["Jaxinfer"], health_pb2.DESCRIPTOR.services_by_name["Health"]]
_SERVICES.append(reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"])
if importlib.util.find_spec("smg_grpc_proto") is not None:
    importlib.import_module("smg_grpc_proto.generated.vllm_engine_pb2")
    _SERVICES.append(Default().FindServiceByName("vllm.grpc.engine.VllmEngine"))

# A watcher stays until the server ends.
METHODS: list[Any] = [method for service in _SERVICES for method in service.methods if method.name != "Watch"]
KINDS = list(dict.fromkeys(message_factory.GetMessageClass(method.input_type) for method in METHODS))

_INTEGERS = [0, 1, 2, 5, 7, 20, 64, 127, 128, 255, 2**31 - 1, -1, -5, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63)]
_FLOATS = [0.0, -0.0, 0.5, 1.0, 1.5, -2.0, 100.0, 1e308, -1e308, float("inf"), float("nan"), 1e-310]
_TEXTS = ["", "a", "hello world", "m", "\x00", "é" * 50, "<|im_end|>", "{{ x }}", "../../etc/passwd", "x" * 5000, "1"]
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (0, 2**31 - 1),
}
_LIKELY = ("text", "token_ids", "tokenized", "sampling_params", "request_id")


class Found(NamedTuple):
    """What a run has found. statuses: how many calls ended with each."""

    statuses: Counter[str]
    wrong: list[str]
    slowest: float


def drawn(draw: random.Random, kind: type[Message], depth: int = 0) -> Message:
    """A message with some of its fields."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if depth > 3 or draw.random() > (0.7 if field.name in _LIKELY else 0.15):
            continue
        declared = getattr(message, field.name)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            _fill_map(draw, declared, field.message_type)
        elif hasattr(declared, "extend"):
            count = draw.choice([0, 1, 2, 3, 20, 40])
            declared.extend([_value(draw, field, depth) for _ in range(count)])
        elif field.message_type is not None:
            declared.CopyFrom(_value(draw, field, depth))
        else:
            setattr(message, field.name, _value(draw, field, depth))
    return message


def _fill_map(draw: random.Random, made: Any, entry: Any) -> None:
    key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
    for _ in range(draw.choice([0, 1, 3, 310])):
        name = _value(draw, key, 9)
        if value.message_type is None:
            made[name] = _value(draw, value, 9)
        else:
            made[name].CopyFrom(_value(draw, value, 9))


def _value(draw: random.Random, field: Any, depth: int) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return drawn(draw, message_factory.GetMessageClass(field.message_type), depth + 1)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return draw.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = draw.choice(_TEXTS)
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if kind in _RANGES:
        low, high = _RANGES[kind]
        return draw.choice([number for number in _INTEGERS if low <= number <= high])
    value = draw.choice(_FLOATS)
    return max(-3.4e38, min(3.4e38, value)) if kind == FieldDescriptor.CPPTYPE_FLOAT else value


def bytes_of(draw: random.Random, message: Message) -> bytes:
    """A message's bytes; often damaged, with fields put in, or other bytes altogether."""
    data = message.SerializeToString()
    match draw.randrange(6):
        case 0:
            return _damaged(draw, data)
        case 1:
            at = draw.choice([0, len(data)])
            return data[:at] + _field(draw) * draw.choice([1, 2, 50]) + data[at:]
        case 2 if draw.random() < 0.5:
            return draw.randbytes(draw.randrange(64))
        case _:
            return data


def _field(draw: random.Random) -> bytes:
    """One field, of any number and wire type."""
    tag = draw.choice([1, 2, 3, 5, 16, 31, 1000, 2**29 - 1]) << 3 | draw.randrange(8)
    value = draw.choice([b"", b"\x01", bytes(4), bytes(8), b"\x80" * 11, b"\x02ab", b"\xff" * 9 + b"\x01", b"\x7f"])
    return _varint(tag) + value


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def _damaged(draw: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(made) + 1)
        match draw.randrange(4):
            case 0:
                del made[at : at + draw.randint(1, 9)]
            case 1:
                made[at:at] = draw.randbytes(draw.randint(1, 6))
            case 2:
                made[at:at] = made[at : at + 40] * draw.randint(1, 5)
            case _:
                made[at : at + 1] = draw.choice([b"\x00", b"\xff", b"\x80", b"\x7f"])
    return bytes(made)


def _path_and_bytes(draw: random.Random) -> tuple[str, bytes]:
    method = draw.choice(METHODS)
    message = drawn(draw, message_factory.GetMessageClass(method.input_type))
    if draw.random() < _LARGE_SHARE and "text" in method.input_type.fields_by_name:
        message.text = draw.choice(["x", "hello ", "é"]) * LARGE_BYTES  # pyright: ignore[reportAttributeAccessIssue]
    return f"/{method.containing_service.full_name}/{method.name}", bytes_of(draw, message)


async def run(folder: Path, count: int, seed: int) -> Found:
    """Makes so many calls to a server of its own."""
    draw, found = random.Random(seed), Found(Counter(), [], 0.0)
    slowest = 0.0
    async with public(byte_level_folder(folder), drain_seconds=0.0) as served:

        async def call_some(number: int) -> None:
            nonlocal slowest
            for _ in range(number):
                path, data = _path_and_bytes(draw)
                begun = time.monotonic()
                status, details = await _call(served, path, data)
                took = time.monotonic() - begun
                slowest = max(slowest, took)
                found.statuses[status] += 1
                if status in _BLAMES or took > MOST_SECONDS:
                    found.wrong.append(f"{path} {data[:300]!r} gave {status} after {took:.1f} s: {details[:300]}")

        await asyncio.gather(*(call_some(count // _AT_ONCE) for _ in range(_AT_ONCE)))
    return found._replace(slowest=slowest)


async def _call(served: Public, path: str, data: bytes) -> tuple[str, str]:
    """The status and its details. To a server a client that reads a stream is a client of any method."""
    call: Any = served.channel.unary_stream(path)(data, timeout=_CALL_SECONDS)
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000, help="calls")
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn from")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(Path(folder) / "model", options.calls, options.seed))
    answers = ", ".join(f"{status}: {number}" for status, number in sorted(found.statuses.items()))
    print(f"{answers}; slowest {found.slowest:.2f} s; {len(found.wrong)} wrong", flush=True)
    for line in found.wrong[:10]:
        print(f"  {line}")
    sys.exit(1 if found.wrong else 0)


if __name__ == "__main__":
    main()
