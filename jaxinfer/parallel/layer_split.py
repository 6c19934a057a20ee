"""Split the layers over the stages of a pipeline. Imports no jax."""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxinfer.errors import ParameterError, quoted

Spans = tuple[tuple[int, int], ...]
"""First layer of each stage, and the one after its last."""

_Found = tuple[int, tuple[int, ...]]
"""The largest cost of a stage, and where each ends."""

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


class Costs(NamedTuple):
    """Bytes that a decode step reads (`read`) and that devices hold (`held`): of each layer, and of what comes before
    the first and after the last."""

    read: Sequence[int]
    held: Sequence[int]
    embedding_held: int
    head_read: int
    head_held: int


def split_layers(costs: Costs, stages: int) -> Spans:
    """Stages whose slowest reads as little as can be, and among such splits the one whose fullest holds the least: all
    wait for the slowest. Raises ParameterError for more stages than layers."""
    total = len(costs.read)
    if stages > total:
        raise ParameterError("pipeline_parallel_size", f"{stages}: the model has {total} layers, one a stage at least")
    read = _Stages(costs.read, 0, costs.head_read, stages)
    held = _Stages(costs.held, costs.embedding_held, costs.head_held, stages)
    slowest = read.smallest_maximum(None)[0]
    ends = held.smallest_maximum(lambda stage, first, last: read.cost(stage, first, last) <= slowest)[1]
    return tuple(itertools.pairwise((0, *ends)))


class _Stages:
    """Sums over runs of layers. first, last: of what the first stage has besides, and the last."""

    def __init__(self, layers: Sequence[int], first: int, last: int, stages: int):
        self._before = [0, *itertools.accumulate(layers)]
        self._more = [first, *[0] * (stages - 2), last]
        self._stages = stages

    def cost(self, stage: int, first: int, last: int) -> int:
        """Return the cost of a stage with the layers from `first` up to but not including `last`."""
        return self._before[last] - self._before[first] + self._more[stage]

    def smallest_maximum(self, allowed: Callable[[int, int, int], bool] | None) -> _Found:
        """The largest cost of a stage in the split where that is smallest, and where each stage ends. allowed(stage,
        first, last): which stages may be; None: all."""
        total = len(self._before) - 1
        # best[end]: of the stages so far, which have the layers before `end`.
        best: dict[int, _Found] = {0: (0, ())}
        for stage in range(self._stages):
            left = self._stages - stage - 1
            ends = range(stage + 1, total - left + 1) if left else (total,)
            best = {end: found for end in ends if (found := self._best(stage, end, best, allowed)) is not None}
        return best[total]

    def _best(
        self, stage: int, end: int, before: dict[int, _Found], allowed: Callable[[int, int, int], bool] | None
    ) -> _Found | None:
        found = [
            (max(most, self.cost(stage, first, end)), (*ends, end))
            for first, (most, ends) in before.items()
            if first < end and (allowed is None or allowed(stage, first, end))
        ]
        return min(found, default=None)


def asked_layers(text: str, layers: int, stages: int) -> Spans:
    """`0-14,15-31`: the layers of each stage, both ends included. Raises ParameterError where they are not all of the
    model's layers in order, or as many ranges as stages."""
    found = [_RANGE.fullmatch(part.strip()) for part in text.split(",")]
    if not all(found):
        raise ParameterError("pipeline_layers", f"{quoted(text)}: ranges such as 0-14,15-31 are allowed, one a stage")
    spans = tuple((int(one[1]), int(one[2] or one[1]) + 1) for one in found if one is not None)
    if len(spans) != stages:
        raise ParameterError("pipeline_layers", f"{text}: {_ranges(len(spans))}, and there are {stages} stages")
    ends = [0, *(last for _, last in spans)]
    in_order = all(first == end < last for (first, last), end in zip(spans, ends, strict=False))
    if not in_order or ends[-1] != layers:
        raise ParameterError(
            "pipeline_layers", f"{text}: every layer from 0 to {layers - 1} must be in one range, in their order"
        )
    return spans


def _ranges(count: int) -> str:
    return "1 range" if count == 1 else f"{count} ranges"
