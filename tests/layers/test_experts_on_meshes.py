"""Experts of a layer over meshes, against one device, in a process of its own with four CPUs."""

import pytest

from tests.layers import experts_over_meshes
from tests.runner.devices import run_on_devices


@pytest.mark.long
def test_shared_experts_and_a_gate():
    run_on_devices(experts_over_meshes.check, 4, "shared", "none")


@pytest.mark.long
def test_groups_of_experts_and_biases():
    run_on_devices(experts_over_meshes.check, 4, "groups", "none")


@pytest.mark.long
def test_quantised_experts():
    """A row's scale of activations is that of all its channels, wherever they are."""
    run_on_devices(experts_over_meshes.check_schemes, 4)


@pytest.mark.long
def test_rows_sent_by_a_ragged_exchange():
    """As accelerators send them; what a device receives is what the others send it."""
    run_on_devices(experts_over_meshes.check_ragged_exchange, 4)


@pytest.mark.long
def test_quantised_products_of_attention_and_mlps():
    """Logits of a dense model over two devices, whose output weights are split along K."""
    run_on_devices(experts_over_meshes.compare_dense_logits, 2)


@pytest.mark.long
def test_the_form_of_dispatch_is_the_fastest_that_agrees():
    """As on an accelerator: the first form is timed slower, then the second one is wrong."""
    run_on_devices(experts_over_meshes.choose_dispatch, 4)
