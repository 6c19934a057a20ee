"""Where experts and their copies are put by their load, beside all ways to put them."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from jaxinfer.parallel.expert_placement import device_tokens, first_placement, place_by_load, slots_of


def zipf(experts: int, tokens: int = 100_000) -> np.ndarray:
    return np.round(tokens / np.arange(1, experts + 1)).astype(np.int64)


@pytest.mark.parametrize(("experts", "redundant", "devices"), [(8, 0, 4), (8, 4, 4), (16, 8, 8), (128, 16, 8)])
@pytest.mark.parametrize("skew", ["even", "zipf", "one", "none"])
def test_every_expert_has_a_slot_and_no_device_two_of_one(experts: int, redundant: int, devices: int, skew: str):
    one = np.where(np.arange(experts) == 3, 1000, 0)
    load = {"even": np.full(experts, 7), "zipf": zipf(experts), "one": one, "none": np.zeros(experts, int)}[skew]
    placement = place_by_load(load, experts + redundant, devices)
    assert len(placement) == experts + redundant
    assert set(placement.tolist()) == set(range(experts))
    for held in placement.reshape(devices, -1).tolist():
        assert len(set(held)) == len(held)
    assert device_tokens(load, placement, devices).sum() == pytest.approx(load.sum())


def test_against_the_best_of_all_placements():
    """Six experts and two copies on four devices. A greedy placement is not always the best."""
    rng, ratios = np.random.default_rng(0), []
    for _ in range(20):
        load = rng.zipf(1.5, 6).clip(max=1000)
        best = min(
            device_tokens(load, np.array([*range(6), *pair])[list(order)], 4).max()
            for pair in itertools.combinations_with_replacement(range(6), 2)
            for order in _pairs(tuple(range(8)))
        )
        got = device_tokens(load, place_by_load(load, 8, 4), 4).max()
        assert got >= best - 1e-9
        ratios.append(got / best)
    assert np.mean(ratios) < 1.05
    assert max(ratios) < 1.5


def _pairs(left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All ways to put things in pairs."""
    if not left:
        yield ()
        return
    first, *rest = left
    for i, other in enumerate(rest):
        for more in _pairs((*rest[:i], *rest[i + 1 :])):
            yield (first, other, *more)


def test_the_busiest_device_by_hand():
    load = np.array([60, 20, 10, 10])
    assert device_tokens(load, np.array([0, 1, 2, 3]), 2).tolist() == [80, 20]
    assert device_tokens(load, np.array(first_placement(4, 2)), 2).tolist() == [30 + 10 + 10, 10 + 30 + 10]
    placed = place_by_load(load, 6, 2)
    assert sorted(map(sorted, placed.reshape(2, 3).tolist())) == [[0, 1, 2], [0, 1, 3]]
    assert device_tokens(load, placed, 2).tolist() == [50, 50]


def test_a_copied_expert_lowers_the_share_under_zipf():
    load = zipf(128)
    first = device_tokens(load, np.arange(128), 8).max() / load.sum()
    placed, copied = (device_tokens(load, place_by_load(load, slots, 8), 8).max() / load.sum() for slots in (128, 144))
    assert first > 0.6  # of all tokens, the first 16 experts'
    assert placed < 0.21  # the first expert's alone are 0.18
    assert copied < 0.1251


def test_slots_of_each_expert():
    assert slots_of(np.array([2, 0, 1, 2]), 3, 2).tolist() == [[1, -1], [2, -1], [0, 3]]
