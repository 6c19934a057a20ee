"""Owners: on whose behalf a choice runs, in the upper bits of its handle."""

from collections.abc import Iterable, Sequence

import numpy as np

from jaxinfer.engine.types import StepOutput

_SHIFT = 40


def handle_of(owner: int, number: int) -> int:
    """The handle of an engine's choice `number`, below 2**40."""
    return (owner << _SHIFT) + number


def owner_of(handle: int) -> int:
    """Whose choice a handle names."""
    return handle >> _SHIFT


def split_by_owner(outputs: Sequence[StepOutput], owners: Iterable[int]) -> dict[int, list[StepOutput]]:
    """What each of `owners` has in these steps; owners that have nothing are left out."""
    found: dict[int, list[StepOutput]] = {}
    for output in outputs:
        of_rows = output.handles >> _SHIFT
        for owner in owners:
            rows = of_rows == owner
            deltas = [delta for delta in output.deltas if owner_of(delta.handle) == owner]
            if deltas or rows.any():
                tokens = output.tokens[np.repeat(rows, output.counts)]
                part = StepOutput(output.handles[rows], output.counts[rows], tokens, deltas)
                found.setdefault(owner, []).append(part)
    return found
