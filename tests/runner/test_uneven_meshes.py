"""Engines over meshes that heads and vocabulary do not divide over, in a process of its own with eight CPUs."""

import pytest

from tests.runner.devices import run_on_devices
from tests.runner.uneven_meshes import check


@pytest.mark.long
def test_copied_heads_and_empty_ones():
    """One KV head on 4 devices; on 5 a head of zeros, and 4 rows of the table that no token has."""
    run_on_devices(check, 5, "mistral", (4, {}), (5, {"decode_steps": 4}))


@pytest.mark.long
@pytest.mark.parametrize("family", ["qwen2", "gpt_oss", "gemma3", "cohere"])
def test_two_kv_heads_on_four_devices(family: str):
    run_on_devices(check, 4, family, (4, {}))
