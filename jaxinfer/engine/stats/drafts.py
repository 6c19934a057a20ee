"""DraftTotals: drafts that were looked at and kept, since start."""

import numpy as np

from jaxinfer.engine.step.plan import StepResult


class DraftTotals:
    """Counts the fields of DraftStats."""

    def __init__(self, most: int) -> None:
        self.drafts = 0
        self.draft_tokens = 0
        self._rows_keeping = np.zeros(most + 1, np.int64)

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted_at)

    @property
    def accepted_at(self) -> list[int]:
        return self._rows_keeping[:0:-1].cumsum()[::-1].tolist()

    def add(self, result: StepResult) -> None:
        """Counts a step's result; one that drafts nothing is none."""
        if result.drafted is None:
            return
        assert result.accepted is not None
        self.drafts += int(np.count_nonzero(result.drafted))
        self.draft_tokens += int(result.drafted.sum())
        self._rows_keeping += np.bincount(result.accepted, minlength=len(self._rows_keeping))
