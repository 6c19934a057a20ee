"""Layers of stages, against every split there is."""

import itertools
import random

import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.parallel.layer_split import Costs, asked_layers, split_layers


def every_split(layers: int, stages: int) -> list[tuple[tuple[int, int], ...]]:
    ends = itertools.combinations(range(1, layers), stages - 1)
    return [tuple(itertools.pairwise((0, *inner, layers))) for inner in ends]


def of_stages(costs: Costs, spans: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """What the slowest stage reads, and what the fullest holds."""
    read = [sum(costs.read[first:last]) for first, last in spans]
    held = [sum(costs.held[first:last]) for first, last in spans]
    read[-1] += costs.head_read
    held[-1] += costs.head_held
    held[0] += costs.embedding_held
    return max(read), max(held)


@pytest.mark.parametrize("seed", range(40))
def test_the_best_of_all_splits(seed: int) -> None:
    rng = random.Random(seed)
    layers = rng.randint(2, 9)
    read = [rng.randint(1, 9) for _ in range(layers)]
    held = [rng.randint(1, 9) for _ in range(layers)]
    costs = Costs(read, held, *(rng.randint(0, 20) for _ in range(3)))
    for stages in range(2, layers + 1):
        found = split_layers(costs, stages)
        assert len(found) == stages
        assert of_stages(costs, found) == min(of_stages(costs, spans) for spans in every_split(layers, stages))


def test_a_head_as_large_as_layers_leaves_the_last_stage_fewer() -> None:
    layers = [10] * 12
    assert split_layers(Costs(layers, layers, 0, 20, 20), 2) == ((0, 7), (7, 12))
    assert split_layers(Costs(layers, layers, 20, 0, 0), 4) == ((0, 3), (3, 6), (6, 9), (9, 12))


def test_more_stages_than_layers() -> None:
    with pytest.raises(
        ParameterError, match=r"pipeline_parallel_size: 4: the model has 3 layers, one a stage at least"
    ):
        split_layers(Costs([1] * 3, [1] * 3, 0, 0, 0), 4)


def test_layers_as_they_are_asked_for() -> None:
    assert asked_layers("0-14,15-31", 32, 2) == ((0, 15), (15, 32))
    assert asked_layers("0, 1-2 ,3", 4, 3) == ((0, 1), (1, 3), (3, 4))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "'': ranges such as 0-14,15-31 are allowed"),
        ("0-x,4-5", "'0-x,4-5': ranges such as 0-14,15-31"),
        ("0-1;2-5", "ranges such as"),
        ("0-5", "0-5: 1 range, and there are 2 stages"),
        ("0-1,2-3,4-5", "3 ranges, and there are 2 stages"),
        ("0-2,2-5", "every layer from 0 to 5 must be in one range"),
        ("0-1,3-5", "every layer from 0 to 5"),
        ("0-2,3-6", "every layer from 0 to 5"),
        ("3-5,0-2", "every layer from 0 to 5"),
        ("0-2,5-3", "every layer from 0 to 5"),
        ("1-2,3-5", "every layer from 0 to 5"),
    ],
)
def test_what_is_no_split(text: str, told: str) -> None:
    with pytest.raises(ParameterError) as error:
        asked_layers(text, 6, 2)
    assert told in str(error.value)
    assert error.value.param == "pipeline_layers"
