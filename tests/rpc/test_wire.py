"""What crosses between an API process and the engine is the same on the other side."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from jaxinfer.constraint import Constraint
from jaxinfer.engine.types import GenerateRequest, TokenDelta, output_of
from jaxinfer.errors import EngineDeadError, JaxinferError, ParameterError, QueueFullError, WorkerLostError
from jaxinfer.rpc import wire
from jaxinfer.sampling import SamplingParams
from tests.engine.small import small_core
from tests.parameter_values import another_value

GRAMMAR = Constraint("json_schema", "{}", whitespace=" ?", after="</b>")
LISTS = {
    "logit_bias": {5: -0.1}, "stop": ("x",), "stop_token_ids": (7, 3), "structured_outputs": GRAMMAR,
    "allowed_token_ids": (4, 9), "bad_words": ("no",), "bad_token_ids": ((5,), (6, 7)),
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(SamplingParams)])
def test_each_sampling_parameter_crosses(name: str) -> None:
    value: Any = LISTS[name] if name in LISTS else another_value(name)
    given = SamplingParams(**{name: value})
    assert given != SamplingParams()
    assert crossed(given) == given


def crossed(params: SamplingParams) -> SamplingParams:
    """What the engine makes of the frame of a request with these parameters."""
    frame = wire.decode_command(wire.encode(wire.pack_request(GenerateRequest("r", [1], params))))
    assert isinstance(frame, wire.Submit)
    return wire.unpack_request(frame).sampling


@pytest.mark.parametrize("prediction", [(), [3, 4], np.array([5, 6], np.int64)])
def test_a_prediction_crosses(prediction: Any) -> None:
    frame = wire.decode_command(wire.encode(wire.pack_request(GenerateRequest("r", [1], prediction=prediction))))
    assert isinstance(frame, wire.Submit)
    found = wire.unpack_request(frame).prediction
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.tolist()) == (np.int32, list(prediction))


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1, 2**53 + 1, 0])
def test_every_bit_of_a_seed_crosses_and_nothing_stays_nothing(seed: int) -> None:
    for params in (SamplingParams(seed=seed), SamplingParams(max_tokens=None, logprobs=0)):
        assert crossed(params) == params


def test_numbers_and_arrays_of_numpy_cross() -> None:
    tokens: Any = np.arange(6, dtype=np.int32)[::2]
    delta = TokenDelta("r", 0, [], cached_tokens=np.int64(7), sequence_id=np.int32(5))  # pyright: ignore[reportArgumentType]
    output = output_of([delta])._replace(sequence_ids=np.arange(3), counts=np.ones(3, np.int32), tokens=tokens)
    (event,) = wire.decode_events(wire.encode([wire.Step([output])]))
    assert isinstance(event, wire.Step)
    (found,) = event.outputs
    assert found.deltas == [delta]
    assert type(found.deltas[0].sequence_id) is int
    for name in ("sequence_ids", "counts", "tokens"):
        np.testing.assert_array_equal(getattr(found, name), getattr(output, name), strict=True)


def test_totals_beyond_64_bits_cross() -> None:
    costs = small_core().costs
    costs.flops, costs.bytes = 2**70, 2**65
    core = small_core()
    core.costs = costs
    (event,) = wire.decode_events(wire.encode([wire.Stats(core.stats())]))
    assert isinstance(event, wire.Stats)
    assert event.stats == core.stats()
    assert (event.stats.steps.flops, event.stats.steps.bytes) == (2**70, 2**65)


@pytest.mark.parametrize(
    "error",
    [
        ParameterError("n", "is wrong"),
        QueueFullError(7, 3),
        EngineDeadError("it has gone"),
        WorkerLostError("it is late"),
        JaxinferError("other"),
    ],
)
def test_an_error_keeps_its_kind(error: JaxinferError) -> None:
    (event,) = wire.decode_events(wire.encode([wire.Failure("r", wire.pack_error(error))]))
    assert isinstance(event, wire.Failure)
    found = wire.unpack_error(event.error)
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("sizes", [(2, 1, 1), (1, 1, 2), (0, 0, 1)])
def test_arrays_that_do_not_fit_each_other_are_refused(sizes: tuple[int, int, int]) -> None:
    sequence_ids, counts, tokens = (("<i4", np.ones(size, np.int32).data) for size in sizes)
    with pytest.raises(ValueError, match="do not fit"):
        wire.decode_events(wire.encode([("Step", [(sequence_ids, counts, tokens, [])])]))
