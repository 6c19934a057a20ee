"""FastForward: tokens that a grammar forces are computed in one row of the next step, instead of one a step."""

from typing import NamedTuple

import numpy as np

from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Sequence, Status
from jaxinfer.engine.step.buckets import bucket_of
from jaxinfer.engine.step.plan import StepKind


class ForcedRun(NamedTuple):
    """Tokens that a sequence must draw next, int32. The step that is being sampled draws the first of them."""

    sequence: Sequence
    tokens: np.ndarray


class Foreseen(NamedTuple):
    """Tokens, int32, that the sequence in a slot has from position `first` on, though no step has computed them."""

    slot: int
    first: int
    tokens: np.ndarray


class FastForward:
    """Decides for which sequences it is done, and has it planned. runner: tells how long steps take."""

    def __init__(self, state: SchedulerState, runner: Runner):
        self._state = state
        self._runner = runner

    def plan(self, runs: list[ForcedRun]) -> list[Foreseen]:
        """Has tokens of these runs known from now on: returns which. The last of each a step will draw."""
        return [self._foreseen(run) for run in self.worthwhile(runs)]

    def worthwhile(self, runs: list[ForcedRun]) -> list[ForcedRun]:
        """Return the runs that are worth computing at once, cut to what fits."""
        asked = [run for run in runs if len(run.tokens) > 1 and self._may(run.sequence)]
        fitting = self._fitting(asked) if asked else []
        return fitting if fitting and self._pays(fitting) else []

    def _foreseen(self, run: ForcedRun) -> Foreseen:
        slot = run.sequence.slot
        return Foreseen(slot, self._state.foresee(slot, run.tokens), run.tokens)

    def _may(self, sequence: Sequence) -> bool:
        """Not where each draw is looked at by itself: of tokens that no step draws, none is counted on the device, and
        none has a log-probability."""
        params = sequence.params
        needs_draws = params.uses_counts or params.logprobs is not None or params.prompt_logprobs is not None
        return sequence.status is Status.RUNNING and not needs_draws

    def _fitting(self, runs: list[ForcedRun]) -> list[ForcedRun]:
        """Cut the runs to the tokens that fit into a step with one token of every row, shared equally. Each sequence's
        last token is left out, since a step must draw it."""
        table, slots = self._state.table, self._state.running_slots()
        at = np.array([run.sequence.slot for run in runs], np.int32)
        room = self._state.shapes.max_num_batched_tokens - self._of_shards(slots, np.ones(len(slots)))
        shares = room // np.maximum(self._of_shards(at, np.ones(len(at))), 1)
        most = np.minimum(shares[table.shards_of(at)] + 1, table.limit[at] - table.total[at]).astype(int)
        cut = [run._replace(tokens=run.tokens[:count]) for run, count in zip(runs, most.tolist(), strict=True)]
        return [run for run in cut if len(run.tokens) > 1]

    def _pays(self, runs: list[ForcedRun]) -> bool:
        """Return whether the runs raise the tokens per second, if the next step would only decode: with tokens from the
        host it takes longer, for every row. The cost of each computed token is left out of both times: it would be
        equal on both sides, rows * tokens times as much."""
        table, slots = self._state.table, self._state.running_slots()
        seconds, buckets = self._runner.step_seconds, self._runner.buckets
        if not seconds or (table.total[slots] - table.computed[slots] > 1).any():
            return True
        more = np.array([len(run.tokens) - 1 for run in runs])
        at = np.array([run.sequence.slot for run in runs])
        rows = self._of_shards(slots, np.ones(len(slots)))
        tokens = rows + self._of_shards(at, more)
        decode = seconds[StepKind.DECODE, bucket_of(int(rows.max()), buckets.rows)]
        mixed = seconds[StepKind.MIXED, bucket_of(int(tokens.max()), buckets.tokens)]
        return bool(mixed * rows.sum() < decode * tokens.sum())

    def _of_shards(self, slots: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Sums of counts, an entry a slot, by shard."""
        return np.bincount(self._state.table.shards_of(slots), counts, self._state.shapes.shards)
