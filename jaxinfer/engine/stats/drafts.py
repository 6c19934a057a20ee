"""DraftTotals: drafts that were looked at and kept, since start."""

import numpy as np

from jaxinfer.engine.step.plan import StepResult


class DraftTotals:
    """drafts: rows with drafts, a step each. drafted, accepted: tokens. accepted_at: of each place among a row's
    drafts, how often the draft there was kept."""

    def __init__(self, most: int) -> None:
        self.drafts = 0
        self.drafted = 0
        self._rows_keeping = np.zeros(most + 1, np.int64)

    @property
    def accepted(self) -> int:
        return int(self.accepted_at.sum())

    @property
    def accepted_at(self) -> np.ndarray:
        """int64 [most]."""
        return self._rows_keeping[:0:-1].cumsum()[::-1]

    def add(self, result: StepResult) -> None:
        """Counts a step's result; one that drafts nothing is none."""
        if result.drafted is None:
            return
        assert result.accepted is not None
        self.drafts += int(np.count_nonzero(result.drafted))
        self.drafted += int(result.drafted.sum())
        self._rows_keeping += np.bincount(result.accepted, minlength=len(self._rows_keeping))
