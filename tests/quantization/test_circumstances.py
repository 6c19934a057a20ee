"""Every scheme in every kind of model, with prompts in chunks, prefix hits, forks and two devices: each pair of those
occurs in a row, whose tokens and log-probabilities must be those of a decoder in NumPy."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.quantization import circumstances
from tests.quantization.circumstances import KINDS, ROWS, TABLE, Row


def by_default(row: Row) -> bool:
    """One of each scheme."""
    return list(KINDS).index(row.kind) == TABLE["scheme"].index(row.scheme) % len(KINDS)


ONE_DEVICE = [
    pytest.param(row, id=str(row), marks=() if by_default(row) else pytest.mark.long)
    for row in ROWS
    if row.devices == 1
]


def test_every_pair_of_values_of_two_factors_is_in_a_row() -> None:
    assert Row._fields == tuple(TABLE)
    for one, other in itertools.combinations(TABLE, 2):
        found = {(getattr(row, one), getattr(row, other)) for row in ROWS}
        assert found == set(itertools.product(TABLE[one], TABLE[other]))


@pytest.mark.long
@pytest.mark.parametrize("row", ONE_DEVICE)
def test_one_device(row: Row, tmp_path: Path) -> None:
    circumstances.check(row, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("half", [0, 1])
def test_two_devices(half: int) -> None:
    """In a process of its own with two CPUs."""
    numbers = [str(i) for i, row in enumerate(ROWS) if row.devices == 2][half::2]
    assert len(numbers) >= 3
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    command = [sys.executable, "-m", circumstances.__name__, *numbers]
    done = subprocess.run(command, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
