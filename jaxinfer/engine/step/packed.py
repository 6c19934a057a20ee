"""PackedStep: a step as runners get it, plain data that could be sent to another host."""

from typing import NamedTuple

import numpy as np

from jaxinfer.engine.step.plan import LogprobArrays, StepKind, StepResult


class PackedForward(NamedTuple):
    """A step in two phases: the forward pass, and sampling.

    kind: DECODE or MIXED. bucket: the size of its forward program. array: int32, as `Layouts` has it. num_rows,
    num_scored: without padding. scored_bucket: the size of its sample program; 0 where nothing is scored. sampled: the
    scored position at which each row samples, int [rows], -1 for none; None where row i samples at i.
    logprobs: whether any row asks for log-probabilities.
    """

    kind: StepKind
    bucket: int
    array: np.ndarray
    num_rows: int
    num_scored: int
    scored_bucket: int
    sampled: np.ndarray | None
    logprobs: bool

    def result(self, tokens: np.ndarray, logprobs: LogprobArrays | None) -> StepResult:
        """The result of its rows. tokens: int32 [num_scored], below 0 where logits were not finite."""
        if self.sampled is None:
            finite = tokens >= 0
            return StepResult(tokens[:, None], finite.astype(np.int32), finite, logprobs)
        samples = self.sampled >= 0
        own = np.where(samples, tokens[self.sampled], 0) if len(tokens) else np.zeros(self.num_rows, np.int32)
        finite = own >= 0
        return StepResult(own[:, None], (samples & finite).astype(np.int32), finite, logprobs)


class PackedMultiStep(NamedTuple):
    """Several decode steps in one dispatch: no second phase, since tokens are sampled in between.

    bucket: rows of its program. array: int32, as `Layouts` has it. num_rows: without padding.
    """

    bucket: int
    array: np.ndarray
    num_rows: int

    def result(self, tokens: np.ndarray, counts: np.ndarray) -> StepResult:
        """The result of its rows. tokens: int32 [rows, steps], of which counts [rows] were sampled; a last one below 0
        where logits were not finite.
        """
        rows = np.arange(self.num_rows)
        tokens, counts = tokens[: self.num_rows], counts[: self.num_rows]
        finite = (counts == 0) | (tokens[rows, np.maximum(counts - 1, 0)] >= 0)
        return StepResult(tokens, counts - ~finite, finite)


PackedStep = PackedForward | PackedMultiStep
