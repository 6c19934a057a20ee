"""The sampler over a vocabulary that several devices share, in a process of its own with eight CPUs."""

import pytest

from tests.runner.devices import run_on_devices
from tests.runner.vocabulary_shards import check_edges, check_exchanges, compare_draws, compare_engines


@pytest.mark.few(1)
def test_draws_are_the_oracles():
    run_on_devices(compare_draws, 8)


@pytest.mark.long
def test_ties_ends_and_what_is_not_finite():
    run_on_devices(check_edges, 8)


@pytest.mark.long
def test_devices_exchange_no_logits():
    run_on_devices(check_exchanges, 8)


@pytest.mark.long
def test_an_engine_gives_the_tokens_of_one_device():
    run_on_devices(compare_engines, 2)
