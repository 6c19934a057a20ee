"""Random cases: as many as a budget of time allows, by seeds that are printed, so that they can be drawn again.

JAXINFER_TEST_SEED is the first case's seed, by default 0; JAXINFER_TEST_SECONDS is the budget of each such test, by
default 20. To repeat a case that failed: its seed, and 0 seconds.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def first_seed() -> int:
    return int(os.environ.get("JAXINFER_TEST_SEED") or 0)


def budget() -> float:
    """Seconds."""
    return float(os.environ.get("JAXINFER_TEST_SECONDS") or 20)


def random_cases() -> Iterator[int]:
    """Seeds of cases, one after another: at least one, and no more where the budget is spent."""
    seed, end = first_seed(), time.monotonic() + budget()
    while True:
        print(f"random case: JAXINFER_TEST_SEED={seed}")
        yield seed
        seed += 1
        if time.monotonic() >= end:
            return


class _RandomCases:
    """`random_cases`, begun when a test walks over them."""

    def __iter__(self) -> Iterator[int]:
        return random_cases()


def fixed_and_random_cases(count: int, by_default: int | None = None) -> list[Any]:
    """Parameters of a test that takes seeds: 0 to `count` - 1, one by one, and in `long` tests random ones as well.
    by_default: so many of the fixed ones are not long; None: all."""
    first = count if by_default is None else by_default
    fixed = [
        pytest.param([seed], id=str(seed), marks=() if seed < first else pytest.mark.long) for seed in range(count)
    ]
    return [*fixed, pytest.param(_RandomCases(), id="random", marks=pytest.mark.long)]


def history_settings(examples: int) -> hypothesis.settings:
    """Of random histories."""
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return hypothesis.settings(
        max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=quiet
    )


def run_state_machines(machine: type[RuleBasedStateMachine], examples: int) -> None:
    """Random histories of the machine: each random case is as many of them."""
    seeded = hypothesis.settings(history_settings(examples), derandomize=False, database=None)
    for seed in random_cases():
        run_state_machine_as_test(hypothesis.seed(seed)(type(machine.__name__, (machine,), {})), settings=seeded)
