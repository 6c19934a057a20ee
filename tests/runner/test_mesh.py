"""Attention over two devices equals that of one, in a process of its own with two CPUs."""

import pytest

from tests.runner.devices import run_on_devices
from tests.runner.two_devices import compare_attention, compare_engines, compare_experts, count_blocks


@pytest.mark.long
def test_two_devices_attend_as_one():
    """With `xla`; kernels are compiled for several devices instead, JAX's TPU interpreter is too slow on two."""
    run_on_devices(compare_attention, 2)


@pytest.mark.long
def test_an_engine_over_two_devices_gives_the_tokens_of_one():
    run_on_devices(compare_engines, 2)


@pytest.mark.long
def test_experts_over_two_devices_give_the_tokens_of_one():
    """Channels split over both, and experts."""
    run_on_devices(compare_experts, 2)


@pytest.mark.long
def test_a_devices_blocks_are_reckoned_from_what_lies_on_it():
    """Of KV blocks that are split and that are not; and keys of programs and measures tell such models apart."""
    run_on_devices(count_blocks, 2)
