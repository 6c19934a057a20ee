"""Copies of experts over four devices: answers are one device's, wherever experts lie, and the load decides where."""

import pytest

from tests.runner import expert_copies
from tests.runner.devices import run_on_devices


@pytest.mark.long
@pytest.mark.parametrize(
    ("mesh", "scheme", "form"),
    [
        ("expert", "none", "reduce"),
        ("expert", "int8", "exchange"),
        ("both", "none", "exchange"),
        ("whole", "fp8", "reduce"),
    ],
)
def test_answers_are_those_of_one_device_while_experts_move(mesh: str, scheme: str, form: str) -> None:
    run_on_devices(expert_copies.compare_answers, 4, mesh, scheme, form)


@pytest.mark.long
def test_every_slot_has_the_weights_of_its_expert_after_many_moves() -> None:
    """Bit for bit."""
    run_on_devices(expert_copies.compare_moved_weights, 4)


@pytest.mark.long
def test_a_device_fault_after_moves_leaves_experts_where_they_are() -> None:
    run_on_devices(expert_copies.reset_after_moves, 4)


@pytest.mark.long
def test_moves_of_a_stack_take_the_room_of_one_layer() -> None:
    """As XLA plans them: what is gathered from other devices is a part of one layer, however many there are."""
    run_on_devices(expert_copies.measure_moves_of_a_stack, 4)
