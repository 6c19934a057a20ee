"""Times of steps that pass the stages of a pipeline, one after another. Imports no jax."""

from collections.abc import Sequence
from typing import NamedTuple


class StagedStep(NamedTuple):
    """Seconds of one step: in each stage, and of what each hands over; the last hands tokens to the first."""

    stages: tuple[float, ...]
    hand_overs: tuple[float, ...]

    @property
    def through(self) -> float:
        """Until its tokens are back at the first stage."""
        return sum(self.stages) + sum(self.hand_overs)


class Round(NamedTuple):
    """Steps after which every row has one token more. bubble: share of the time in which a stage waits, on average
    over stages."""

    seconds: float
    bubble: float


def steady_round(steps: Sequence[StagedStep]) -> Round:
    """Estimate one round of these steps in a steady state. A step begins when its rows' tokens are back. A round takes
    as long as the slowest stage or the slowest transfer takes for all steps, or as one step takes to come back."""
    stages = [sum(each) for each in zip(*(step.stages for step in steps), strict=True)]
    hand_overs = [sum(each) for each in zip(*(step.hand_overs for step in steps), strict=True)]
    seconds = max(*stages, *hand_overs, *(step.through for step in steps))
    return Round(seconds, 1 - sum(stages) / len(stages) / seconds)


def flow_seconds(steps: Sequence[StagedStep]) -> float:
    """Until the last stage has computed the last of steps that wait for no tokens: each begins as soon as a stage is
    free, and is handed over as soon as what was before it."""
    if not steps:
        return 0.0
    computed, handed = ([0.0] * len(steps[0].stages) for _ in range(2))
    for step in steps:
        ready = 0.0
        for stage, (seconds, hand_over) in enumerate(zip(*step, strict=True)):
            computed[stage] = max(computed[stage], ready) + seconds
            ready = handed[stage] = max(handed[stage], computed[stage]) + hand_over
    return computed[-1]
