"""Compute the time of microbatches in each form if stages run side by side, from the cost of a layer."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.pipeline_parts.microbatches import Microbatch
from benchmarks.pipeline_parts.model import MAX_ROWS


class LayerCost(NamedTuple):
    """Milliseconds of a layer over a bucket: some for its weights, and some for each token."""

    weights: float
    token: float

    def of(self, bucket: int) -> float:
        """Return the cost of one layer."""
        return self.weights + self.token * bucket


def schedules(
    layers: Sequence[int], head: float, microbatches: Sequence[Microbatch], cost: LayerCost
) -> dict[str, list[float]]:
    """Return for each form the milliseconds until all microbatches have left, and the most between two tokens of a row.

    `B, own rows`: a microbatch waits for the last one of its own rows alone, not for any that drew as many before it.
    layers: of each stage. head: of the last stage, in layers over a microbatch's rows.
    """
    ends = {
        "A": _ticks(layers, head, microbatches, cost, branches=False),
        "A+": _ticks(layers, head, microbatches, cost, branches=True),
        "B": _streams(layers, head, microbatches, cost, own_rows=False),
        "B, own rows": _streams(layers, head, microbatches, cost, own_rows=True),
    }
    return {name: [found[-1], _longest_wait(microbatches, found)] for name, found in ends.items()}


def _ticks(
    layers: Sequence[int], head: float, microbatches: Sequence[Microbatch], cost: LayerCost, branches: bool
) -> list[float]:
    """When each microbatch leaves, where all stages wait for the slowest of a tick."""
    stages, now, ends = len(layers), 0.0, []
    for tick in range(len(microbatches) + stages - 1):
        inside = {stage: microbatches[tick - stage] for stage in range(stages) if 0 <= tick - stage < len(microbatches)}
        bucket = max(one.bucket for one in inside.values())
        times = []
        for stage, one in inside.items():
            own = min(bucket, MAX_ROWS) if one.bucket <= MAX_ROWS else bucket
            time = layers[stage] * cost.of(own) if branches else max(layers) * cost.of(bucket)
            times.append(time + (stage == stages - 1) * head * cost.of(one.rows))
        now += max(times)
        if tick >= stages - 1:
            ends.append(now)
    return ends


def _streams(
    layers: Sequence[int], head: float, microbatches: Sequence[Microbatch], cost: LayerCost, own_rows: bool
) -> list[float]:
    """When each microbatch leaves, where a stage begins as soon as it is free and its input is there."""
    stages, free, ends = len(layers), [0.0] * len(layers), []
    last: dict[tuple[int, ...], float] = {}
    for number, one in enumerate(microbatches):
        if not own_rows:
            now = ends[number - stages] if number >= stages else 0.0
        else:  # a prompt waits for nothing
            now = last.get(_slots(one), 0.0) if one.bucket <= MAX_ROWS else 0.0
        for stage in range(stages):
            time = layers[stage] * cost.of(one.bucket) + (stage == stages - 1) * head * cost.of(one.rows)
            now = free[stage] = max(now, free[stage]) + time
        ends.append(now)
        last[_slots(one)] = now
    return ends


def _longest_wait(microbatches: Sequence[Microbatch], ends: Sequence[float]) -> float:
    last: dict[tuple[int, ...], float] = {}
    longest = 0.0
    for one, end in zip(microbatches, ends, strict=True):
        if one.bucket <= MAX_ROWS:
            longest = max(longest, end - last.get(_slots(one), end))
            last[_slots(one)] = end
    return longest


def _slots(microbatch: Microbatch) -> tuple[int, ...]:
    return tuple(microbatch.packed[:, 0].tolist())
