"""DraftTotals: drafts that were looked at and kept, since start."""

import numpy as np

from jaxinfer.engine.step.plan import StepResult


class DraftTotals:
    """drafts: rows with drafts, a step each. drafted, accepted: tokens. accepted_at: of each place among a row's
    drafts, how often the draft there was kept."""

    def __init__(self, most: int) -> None:
        self.drafts = 0
        self.drafted = 0
        self.accepted_at = np.zeros(most, np.int64)

    @property
    def accepted(self) -> int:
        return int(self.accepted_at.sum())

    def add(self, result: StepResult) -> None:
        """Counts a step's result; one that drafts nothing is none."""
        if result.drafted is None:
            return
        used = result.drafted > 0
        # Of a row's tokens all but the last were drafted, unless a stop id among the drafts is the last.
        kept = np.minimum(np.maximum(result.counts - 1, 0), result.drafted)[used]
        self.drafts += int(np.count_nonzero(used))
        self.drafted += int(result.drafted.sum())
        self.accepted_at += (kept[:, None] > np.arange(len(self.accepted_at))).sum(axis=0)
