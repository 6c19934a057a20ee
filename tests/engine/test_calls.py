"""Calls as messages: each comes back as it was, and a message that was changed, lost or repeated is refused."""

import random
import struct
from functools import cache
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.engine.device import calls
from jaxinfer.engine.device.call_stream import CallReader, CallStreamError, CallWriter
from jaxinfer.engine.device.follower import Follower, FollowerError
from jaxinfer.engine.device.leader import LeadingRunner
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.step.packed import PackedHistory, PackedMasks, PackedStep
from jaxinfer.engine.step.packing import Packer
from jaxinfer.engine.step.plan import StepKind
from jaxinfer.speculation import Speculation
from tests.engine.followed import FailingCalls, Followed, Recorded, assert_same
from tests.engine.small import VOCABULARY, ask, run, small_core, small_shapes
from tests.engine.toy_grammar import Toy, ToyConstraints

HEADER = 12
"""Bytes before a message's call: its number, and the digest."""


def arrays(dtype: type, bits: int = 32) -> st.SearchStrategy[np.ndarray]:
    end = 1 << (bits - 1)
    return st.lists(st.integers(-end, end - 1), max_size=40).map(lambda values: np.array(values, dtype))


INT32, INT64 = arrays(np.int32), arrays(np.int64, 64)
SIZES, NUMBERS = st.integers(0, 2**31), st.integers(-1, 2**63 - 1)
STEPS = st.builds(
    PackedStep,
    kind=st.sampled_from(StepKind),
    bucket=SIZES,
    array=INT32,
    num_rows=SIZES,
    num_scored=SIZES,
    scored_bucket=SIZES,
    sampled=st.none() | INT64,
    logprobs=st.booleans(),
    places=st.none() | INT64,
    index=NUMBERS,
    needs=NUMBERS,
)
CALLS = st.one_of(
    st.builds(calls.InitSlots, INT32),
    st.builds(calls.SetHistory, st.builds(PackedHistory, SIZES, INT32)),
    st.builds(calls.CopyBlocks, INT32),
    st.builds(calls.Start, STEPS, st.booleans()),
    st.builds(calls.Sample, SIZES, st.none() | INT32),
    st.builds(calls.SetMasks, st.builds(PackedMasks, SIZES, INT32)),
    st.just(calls.Reset()),
)


@given(CALLS)
def test_every_call_comes_back(call: calls.Call) -> None:
    assert_same(calls.decode(calls.encode(call)), call)


WORKLOADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shards": {"shards": 3},
    "several steps": {"decode_steps": 4},
    "drafts": {"drafting": Speculation(3, 1, 1), "shards": 2},
    "stages": {"stages": 2},
}


@cache
def followed(workload: str) -> Followed:
    """After requests that fork, have grammars, ask for log-probabilities and lack blocks, and a fault."""
    shapes = small_shapes(**{"blocks": 16, **WORKLOADS[workload]})
    device = FailingCalls(SimulatedRunner(shapes, hit_rate=0.6))
    pair = Followed(device, SimulatedRunner(shapes, hit_rate=0.6))
    core = small_core(pair.leader, ahead=1, constraints=ToyConstraints(VOCABULARY))
    for i in range(8):
        grammar = Toy(i, 12).constraint if i % 3 == 2 else None
        logprobs = 1 if i % 4 == 1 else None
        core.add_request(
            ask(f"r{i}", 3 + 3 * i, 10, n=1 + i % 3, seed=i, structured_outputs=grammar, prompt_logprobs=logprobs)
        )
    for _ in range(4):
        core.step()
    device.fail_once("dispatched")
    run(core)
    assert core.stats().core.step_faults == 1
    pair.check()
    return pair


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_follower_is_asked_the_same(workload: str) -> None:
    """`check` compares the arguments of all calls, all results, and KV blocks."""
    assert followed(workload).compared > 10


def test_workloads_have_every_call() -> None:
    seen = {type(calls.decode(message[HEADER:])) for name in WORKLOADS for message in followed(name).messages}
    assert seen == set(get_args(calls.Call))


@pytest.mark.few(3)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_flipped_bit_is_found_in_its_message(workload: str) -> None:
    """In every byte of one message of each kind of call, in some of all others."""
    rng, reader, seen = random.Random(0), CallReader(), set[type]()
    for message in followed(workload).messages:
        places = range(len(message)) if (kind := _kind(message)) not in seen else rng.sample(range(len(message)), 12)
        seen.add(kind)
        for at in places:
            with pytest.raises(CallStreamError):
                reader.read(_flipped(message, at, rng.randrange(8)))
        reader.read(message)


def test_a_flipped_bit_reaches_no_runner() -> None:
    pair = followed("plain")
    repeated = Followed(SimulatedRunner(pair.leader.shapes), SimulatedRunner(pair.leader.shapes))
    for message in pair.messages[:40]:
        before = len(repeated.repeated.calls)
        with pytest.raises(CallStreamError):
            repeated.follower.apply(_flipped(message, len(message) - 1, 3))
        assert len(repeated.repeated.calls) == before
        repeated.follower.apply(message)


def test_a_message_that_is_cut_short_is_refused() -> None:
    message = followed("plain").messages[0]
    for size in range(len(message)):
        with pytest.raises(CallStreamError):
            CallReader().read(message[:size])
    with pytest.raises(CallStreamError, match="has 5 bytes; its header alone has 12"):
        CallReader().read(message[:5])


def test_a_lost_or_repeated_message_is_refused() -> None:
    messages = followed("shards").messages[:60]
    reader = CallReader()
    for number, message in enumerate(messages[:-1]):
        with pytest.raises(CallStreamError, match=f"number: the message has {number + 1}, and {number} comes next"):
            reader.read(messages[number + 1])
        reader.read(message)
        with pytest.raises(CallStreamError, match=f"number: the message has {number}, and {number + 1} comes next"):
            reader.read(message)


def test_the_error_shows_both_digests() -> None:
    """Of a stream that differs in an earlier call, too."""
    one, other, reader = CallWriter(), CallWriter(), CallReader()
    reader.read(one.write(calls.Sample(4)))
    other.write(calls.Sample(5))
    message = other.write(calls.Sample(6))
    told = struct.unpack_from("<QI", message)[1]
    one.write(calls.Sample(6))
    with pytest.raises(CallStreamError, match=f"digest of call 1: the message has {told:#010x}, .* {one.digest:#010x}"):
        reader.read(message)


def test_what_is_no_call_is_refused() -> None:
    class Other(msgspec.Struct, array_like=True, tag=True):
        number: int

    with pytest.raises(CallStreamError, match="call 0 cannot be decoded: Invalid value 'Other'"):
        CallReader().read(CallWriter().write(Other(3)))  # type: ignore[arg-type]


@pytest.mark.parametrize("array", [np.zeros((2, 2), np.int32), np.zeros(3, np.float32), np.zeros(3, ">i4")])
def test_other_arrays_are_not_encoded(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"one axis and of <i4 or <i8, not \("):
        calls.encode(calls.InitSlots(array))


def test_decoded_arrays_stay_as_they_are() -> None:
    """Whatever becomes of the message: a step in flight may read them."""
    message = bytearray(calls.encode(calls.InitSlots(np.arange(9, dtype=np.int32))))
    call = calls.decode(message)
    assert isinstance(call, calls.InitSlots)
    message[:] = bytes(len(message))
    assert call.packed.tolist() == list(range(9))
    assert not call.packed.flags.writeable


def test_a_failing_call_names_itself_and_a_reset_mends_it() -> None:
    """What comes between is passed over."""
    device, writer = FailingCalls(SimulatedRunner(small_shapes())), CallWriter()
    pair = Followed(SimulatedRunner(small_shapes()), device)
    device.fail_once("dispatch", after=1)
    pair.follower.apply(writer.write(_start(0)))
    with pytest.raises(FollowerError, match="call 1, Sample, failed with StepBroke"):
        pair.follower.apply(writer.write(calls.Sample(0)))
    for call in (_start(1), calls.Sample(1), calls.Reset(), _start(2), calls.Sample(2)):
        pair.follower.apply(writer.write(call))
    kinds = [type(call) for call in pair.repeated.calls]
    assert kinds == [calls.Start, calls.Sample, calls.Reset, calls.Start, calls.Sample]
    assert len(pair.follower) == 1


def test_a_failing_step_names_its_call() -> None:
    device, writer = FailingCalls(SimulatedRunner(small_shapes())), CallWriter()
    follower = Followed(SimulatedRunner(small_shapes()), device).follower
    device.fail_once("collect")
    for call in (_start(0), calls.Sample(0), _start(1)):
        follower.apply(writer.write(call))
    with pytest.raises(FollowerError, match="the step of call 1 failed with StepBroke"):
        follower.apply(writer.write(calls.Sample(1)))


def test_a_step_is_sampled_once_by_its_index() -> None:
    follower, writer = Follower(SimulatedRunner(small_shapes())), CallWriter()
    follower.apply(writer.write(_start(5)))
    with pytest.raises(FollowerError, match=r"index: step 6 is named; to be sampled are \[5\]"):
        follower.apply(writer.write(calls.Sample(6)))
    follower.apply(writer.write(calls.Reset()))
    for number in (7, 8):
        follower.apply(writer.write(_start(number)))
    with pytest.raises(FollowerError, match=r"step 9 comes, and \[7, 8\] are not sampled yet"):
        follower.apply(writer.write(_start(9)))


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_steps_are_collected_in_order_and_few_are_kept(ahead: int) -> None:
    """A device with a thread of its own gives results in its order alone."""
    device, other = (SimulatedRunner(small_shapes(), step_seconds=0.0) for _ in range(2))
    pair = Followed(device, other, steps_ahead=ahead)
    core = small_core(pair.leader, ahead=ahead)
    for i in range(4):
        core.add_request(ask(f"r{i}", 5, 12))
    run(core)
    pair.check()
    assert pair.most_kept == ahead
    core.close()
    other.close()


def test_a_message_is_sent_before_the_call() -> None:
    """A follower that cannot be reached stops the engine: its reset fails, too."""

    def lost(message: bytes) -> None:
        raise ConnectionError("gone")

    runner: Any = Recorded(SimulatedRunner(small_shapes()))
    core = small_core(LeadingRunner(runner, lost))
    core.add_request(ask("a", 5))
    with pytest.raises(ConnectionError):
        core.step()
    assert runner.calls == []


def _start(index: int) -> calls.Start:
    """Start a step of padding that waits to be sampled."""
    step = Packer(small_shapes()).padding(StepKind.DECODE, 4)
    return calls.Start(step._replace(index=index), samples=False)


def _kind(message: bytes) -> type:
    return type(calls.decode(message[HEADER:]))


def _flipped(message: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(message)
    changed[at] ^= 1 << bit
    return bytes(changed)
