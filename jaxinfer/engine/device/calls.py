"""Calls: those of a Runner that start something on the device, as messages that another host's runner can repeat.

`collect` and `read_drafts` have none: they wait for what was started, and change nothing on the device. MessagePack; an
array crosses as its dtype and its bytes. Not a public interface: all hosts run one version of jaxinfer.
"""

from typing import Any

import msgspec
import numpy as np

from jaxinfer.engine.array_coding import DTYPES, array, plain
from jaxinfer.engine.step.packed import PackedBurst, PackedForward, PackedHistory, PackedMasks


class _Call(msgspec.Struct, array_like=True, tag=True):
    """An array that begins with the name of its class."""


class InitSlots(_Call):
    """packed: int32, as `Layouts.admit` has it, a section a shard."""

    packed: np.ndarray


class SetHistory(_Call):
    """Tokens that slots have."""

    packed: PackedHistory


class CopyBlocks(_Call):
    """packed: int32, as `Layouts.copies` has it, a section a shard."""

    packed: np.ndarray


class Forward(_Call):
    """number: of this forward pass among all `Forward` and `Draft` calls, from 0."""

    number: int
    step: PackedForward


class Sample(_Call):
    """number: of the forward pass that it samples for."""

    number: int


class SetMasks(_Call):
    """Masks of slots."""

    packed: PackedMasks


class Burst(_Call):
    """A step by which rows may get several tokens."""

    step: PackedBurst


class Draft(_Call):
    """number: as of `Forward`."""

    number: int
    step: PackedBurst


class Verify(_Call):
    """number: of the `Draft` call. counts: drafts of each row that may be kept, int32 [rows]."""

    number: int
    counts: np.ndarray


class Reset(_Call):
    """Drops steps in flight, blocks and slot state."""


Call = InitSlots | SetHistory | CopyBlocks | Forward | Sample | SetMasks | Burst | Draft | Verify | Reset


def decode(data: bytes | bytearray) -> Call:
    """The call that was encoded. Its arrays are read-only, and own their memory. Raises msgspec.ValidationError or
    msgspec.DecodeError."""
    return _DECODER.decode(data)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray) and (value.ndim != 1 or value.dtype.str not in DTYPES):
        raise ValueError(f"an array is of one axis and of {' or '.join(DTYPES)}, not {value.shape} {value.dtype}")
    return plain(value)


encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
"""The bytes of a call."""
_DECODER: msgspec.msgpack.Decoder[Call] = msgspec.msgpack.Decoder(Call, dec_hook=array)
