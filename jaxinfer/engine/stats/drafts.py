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
        assert result.accepted is not None
        self.drafts += int(np.count_nonzero(result.drafted))
        self.drafted += int(result.drafted.sum())
        self.accepted_at += (result.accepted[:, None] > np.arange(len(self.accepted_at))).sum(axis=0)
