"""PackedStep: a step as runners get it, plain data that could be sent to another host."""

from typing import NamedTuple

import numpy as np

from jaxinfer.engine.step.plan import MULTI_TOKEN, LogprobArrays, StepKind, StepResult


class PackedStep(NamedTuple):
    """A step, of any kind. With several shards each computes a section of `array`, and gives a section of the results.

    Its phases are a forward pass and sampling; a SPECULATE step drafts before its forward pass; MULTI_STEP is one
    program, without phases. Steps of MULTI_TOKEN give rows several tokens, which are results of rows; others give
    results of scored positions.

    bucket: rows or tokens of its program, in each shard. array: int32, as `Layouts` has it. num_rows, num_scored:
    without padding. scored_bucket: the size of its sample program; 0 where nothing is scored. sampled: the scored
    position at which each row samples, int [rows], -1 for none; None where row i samples at i. logprobs: whether any
    row asks for log-probabilities. places: of each row, or scored position, in the results, int [n]; None where i lies
    at i. index, needs: of its plan.
    """

    kind: StepKind
    bucket: int
    array: np.ndarray
    num_rows: int
    num_scored: int = 0
    scored_bucket: int = 0
    sampled: np.ndarray | None = None
    logprobs: bool = False
    places: np.ndarray | None = None
    index: int = 0
    needs: int = -1

    def picked(self, results: np.ndarray) -> np.ndarray:
        """Pick the results of rows, or scored positions, from a program's padded output, an entry each."""
        if self.places is not None:
            return results[self.places]
        return results[: self.num_rows if self.kind in MULTI_TOKEN else self.num_scored]

    def in_rows(self, values: np.ndarray, shards: int) -> np.ndarray:
        """int32, an entry a row of the program in every shard, of one a row of the plan: the other way round."""
        found = np.zeros(self.bucket * shards, np.int32)
        found[np.arange(self.num_rows) if self.places is None else self.places] = values
        return found

    def result_of_scored(self, tokens: np.ndarray, logprobs: LogprobArrays | None) -> StepResult:
        """The result of its rows. tokens: int32 [num_scored], below 0 where logits were not finite."""
        if self.sampled is None:
            finite = tokens >= 0
            return StepResult(tokens[:, None], finite.astype(np.int32), finite, logprobs)
        samples = self.sampled >= 0
        own = np.where(samples, tokens[self.sampled], 0) if len(tokens) else np.zeros(self.num_rows, np.int32)
        finite = own >= 0
        return StepResult(own[:, None], (samples & finite).astype(np.int32), finite, logprobs)

    def result_of_rows(
        self,
        tokens: np.ndarray,
        counts: np.ndarray,
        drafted: np.ndarray | None = None,
        accepted: np.ndarray | None = None,
        predicted: np.ndarray | None = None,
        logprobs: LogprobArrays | None = None,
    ) -> StepResult:
        """The result of its rows. tokens: int32 [rows, steps], of which counts [rows] were sampled; a last one below 0
        where logits were not finite. drafted, accepted, predicted: [rows], of a step that drafts. logprobs: an entry a
        row and step.
        """
        tokens, counts = self.picked(tokens), self.picked(counts)
        finite = np.ones(self.num_rows, bool)
        if tokens.min(initial=0) < 0:
            last = tokens[np.arange(self.num_rows), np.maximum(counts - 1, 0)]
            finite = (counts == 0) | (last >= 0)
        columns = (drafted, accepted, predicted)
        drafts = (None if column is None else self.picked(column) for column in columns)
        return StepResult(tokens, counts - ~finite, finite, logprobs, *drafts)


class PackedHistory(NamedTuple):
    """Tokens that slots have, for what drafts from them. bucket: tokens of its program, in each shard. array: int32, as
    `Layouts` has it, a section a shard."""

    bucket: int
    array: np.ndarray


class PackedMasks(NamedTuple):
    """Masks of slots, before a step that draws under them. bucket: masks of its program, in each shard. array: int32,
    as `Layouts` has it, a section a shard."""

    bucket: int
    array: np.ndarray
