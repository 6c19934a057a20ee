"""Engines whose devices attend for different requests (the axis `data`), in a process of its own with CPU devices."""

import pytest

from tests.runner import data_shards
from tests.runner.devices import run_on_devices


@pytest.mark.long
def test_windows_forks_penalties_and_log_probabilities():
    """gpt-oss: windows, sinks, experts; rows of both shards in one step, with few blocks each; then several decode
    steps a dispatch, and drafts."""
    run_on_devices(data_shards.few_blocks_multi_step_and_drafts, 4)


@pytest.mark.long
def test_other_meshes():
    run_on_devices(data_shards.other_meshes, 8)


@pytest.mark.long
def test_the_load_of_experts_is_that_of_all_shards():
    run_on_devices(data_shards.expert_load, 2)
