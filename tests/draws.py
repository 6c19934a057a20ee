"""Random cases: as many as a budget of time allows, by seeds that are printed, so that they can be drawn again.

JAXINFER_TEST_SEED is the first case's seed, by default 0; JAXINFER_TEST_SECONDS is the budget of each such test, by
default 20. To repeat a case that failed: its seed, and 0 seconds.
"""

import os
import time
from collections.abc import Iterator

import hypothesis
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


def run_state_machines(machine: type[RuleBasedStateMachine], settings: hypothesis.settings) -> None:
    """Random histories of the machine; one random case is as many of them as `settings` say."""
    for seed in random_cases():
        seeded = hypothesis.seed(seed)(type(machine.__name__, (machine,), {}))
        run_state_machine_as_test(seeded, settings=hypothesis.settings(settings, derandomize=False, database=None))
