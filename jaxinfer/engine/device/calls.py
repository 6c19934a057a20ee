"""Calls: what a Runner is asked to do, in order, as messages that another host's runner can repeat.

`collect` and `read_drafts` have none: they wait for what was started, and change nothing on the device. MessagePack; an
array crosses as its dtype and its bytes. Not a public interface: all hosts run one version of jaxinfer.
"""

from typing import Any

import msgspec
import numpy as np

from jaxinfer.engine.array_coding import DTYPES, array, plain
from jaxinfer.engine.step.packed import PackedHistory, PackedMasks, PackedStep


class _Call(msgspec.Struct, array_like=True, tag=True):
    """An array that begins with the name of its class."""


class InitSlots(_Call):
    """Writes the state of slots that sequences have got. packed: int32, as `Layouts.admit` has it, a section a
    shard."""

    packed: np.ndarray


class SetHistory(_Call):
    """Writes tokens that slots have: steps that are started later draft from them."""

    packed: PackedHistory


class CopyBlocks(_Call):
    """Copies blocks, before the step that needs them. packed: int32, as `Layouts.copies` has it, a section a shard."""

    packed: np.ndarray


class SetMasks(_Call):
    """Writes which tokens slots may draw: whatever samples later does so under them."""

    packed: PackedMasks


class Start(_Call):
    """Starts a step. samples: as a whole; if False without its sampling, which MULTI_STEP cannot be: its drafts, if it
    drafts, may be read, and `Sample` comes later."""

    step: PackedStep
    samples: bool = True


class Sample(_Call):
    """Starts the sampling of a step that was started without. index: of the step. counts: drafts of each row that may
    be kept, int32 [rows]: up to there its slot has masks of the positions that are drawn; None where nothing drafts."""

    index: int
    counts: np.ndarray | None = None


class Reset(_Call):
    """Drops steps in flight, and makes blocks and slot state anew; weights and programs stay."""


Write = InitSlots | SetHistory | CopyBlocks | SetMasks
"""Calls that change what the device remembers."""
Call = Write | Start | Sample | Reset


def sampled_by(call: Call) -> int | None:
    """Return the index of the step that a call starts to sample, after which it can be collected."""
    match call:
        case Start(step, samples=True):
            return step.index
        case Sample(index):
            return index
    return None


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
