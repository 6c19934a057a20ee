"""StepCostTotals: what the steps of an engine compute, and what it costs by a model of the step."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxinfer.engine.stats.counters import STEP_TOKENS
from jaxinfer.engine.step.buckets import Buckets, bucket_of, bucket_of_plan, make_buckets, most_rows
from jaxinfer.engine.step.plan import StepKind, StepPlan, StepResult
from jaxinfer.engine.step.shapes import EngineShapes

_BATCH = 64
"""Plans that are counted together: one array operation costs as much for all of them as for one."""


class ExpertCosts(NamedTuple):
    """Layers whose experts are alike. Each token goes to `chosen` of `count` in each; bytes: of one expert's weights in
    all of these layers."""

    count: int
    chosen: int
    bytes: int


class StepCosts(NamedTuple):
    """Cost of a model's steps, all devices together.

    weight_bytes: read once by each forward pass; experts: bytes that it reads besides. token_flops: of a token's
    products with weights. scored_flops: of a scored position's with the head. kv_bytes: an entry a KV group, of one
    token's keys and values in all of its layers. pair_flops: an entry a KV group, of one query against one key and
    value in all of its layers.
    """

    weight_bytes: int
    token_flops: int
    scored_flops: int
    kv_bytes: tuple[int, ...]
    pair_flops: tuple[int, ...]
    experts: tuple[ExpertCosts, ...] = ()

    def expert_bytes(self, tokens: int, passes: int) -> int:
        """The most that so many passes read of experts for so many tokens together: as if no two tokens of a pass
        chose the same one while there are others. Which they choose is known on the device alone."""
        return sum(experts.bytes * min(experts.chosen * tokens, experts.count * passes) for experts in self.experts)


class StepCostTotals:
    """Running totals over the plans that were dispatched, up to `_BATCH` of them late.

    flops and bytes count what the rows of the plans need and no padding: each pass reads all weights but those of
    experts that it cannot have chosen, each decoding row the keys and values that it sees, each chunk those once, and
    every token writes its own. They are 0 without costs.
    """

    def __init__(self, shapes: EngineShapes, costs: StepCosts | None, buckets: Callable[[], Buckets] | None = None):
        """buckets: the sizes that plans are packed for at the time; by default all."""
        every = make_buckets(shapes)
        self._shapes, self._buckets = shapes, buckets or (lambda: every)
        self._windows = [group.window for group in shapes.groups]
        self._costs = costs
        self._decoded: list[tuple[int, int]] = []
        self._decode_rows: list[_Rows] = []
        self._chunks: list[_Rows] = []
        self.decode_steps = 0
        self.mixed_steps = 0
        self.multi_step_steps = 0
        self.speculate_steps = 0
        self.decode_tokens = 0
        self.prefill_tokens = 0
        self.padded_tokens = 0
        self.flops = 0
        self.bytes = 0
        self.iteration_tokens = 0
        self.step_tokens = [0] * (len(STEP_TOKENS) + 1)

    def add(self, plan: StepPlan) -> None:
        """Counts a plan, now or soon; one that drafts when it is collected (`add_drafted`)."""
        if plan.kind is StepKind.SPECULATE:
            return
        decode = plan.num_decode
        # NOTE: whole plans are not kept: what later steps allocate would lie on cold memory.
        if plan.kind is not StepKind.DECODE:
            self._count_plan(plan)
            # As many tokens as are planned, though a stop id may end a row sooner.
            self._decode_rows.append(_Rows(plan.starts[:decode], plan.samples[:decode]))
            self._chunks.append(_Rows(plan.starts[decode:], plan.counts[decode:]))
        elif decode:
            self._decoded.append((decode, bucket_of(most_rows(plan, self._shapes), self._buckets().rows)))
            self._decode_rows.append(_Rows(plan.starts, plan.counts))
        if len(self._decode_rows) >= _BATCH:
            self.count()

    def add_drafted(self, plan: StepPlan, result: StepResult) -> None:
        """Counts a plan that drafts: each row computes its newest token and its drafts, and draws at all of them."""
        assert result.drafted is not None
        size = bucket_of_plan(plan, self._buckets(), self._shapes) * self._shapes.shards * self._shapes.row_tokens
        rows = 1 + result.drafted
        computed, drawn = int(rows.sum()), int(result.counts.sum())
        self.speculate_steps += 1
        self._count_tokens(_Tokens(0, computed, drawn, computed, size - computed), 1)
        self._decode_rows.append(_Rows(plan.starts, rows))

    def count(self) -> None:
        """Counts what was added and not counted yet."""
        for (rows, size), steps in Counter(self._decoded).items():
            self.decode_steps += steps
            padded = size * self._shapes.shards - rows
            self._count_tokens(_Tokens(prefill=0, decode=rows, drawn=rows, scored=rows, padded=padded), steps)
        self._decoded.clear()
        decode, chunks = _joined(self._decode_rows), _joined(self._chunks)
        self._decode_rows.clear()
        self._chunks.clear()
        if self._costs is not None:
            self._count_attention(self._costs, decode, chunks)

    def _count_plan(self, plan: StepPlan) -> None:
        size = bucket_of_plan(plan, self._buckets(), self._shapes) * self._shapes.shards
        if plan.kind is StepKind.MULTI_STEP:
            passes, tokens = int(plan.samples.max()), int(plan.samples.sum())
            self.multi_step_steps += 1
            self._count_tokens(_Tokens(0, tokens, tokens, tokens, size * passes - tokens), 1, passes)
        else:
            self.mixed_steps += 1
            padded = size - plan.num_tokens
            drawn = int(plan.samples.sum())
            self._count_tokens(_Tokens(len(plan.tokens), plan.num_decode, drawn, plan.num_scored, padded), 1)

    def _count_tokens(self, tokens: "_Tokens", steps: int, passes: int = 1) -> None:
        """So many steps of one kind. passes: through the model's layers, in each."""
        count = tokens.prefill + tokens.decode
        self.prefill_tokens += tokens.prefill * steps
        self.decode_tokens += tokens.decode * steps
        self.padded_tokens += tokens.padded * steps
        iteration = tokens.prefill + tokens.drawn
        self.iteration_tokens += iteration * steps
        self.step_tokens[bisect_left(STEP_TOKENS, iteration)] += steps
        if self._costs is not None:
            self.flops += steps * (self._costs.token_flops * count + self._costs.scored_flops * tokens.scored)
            weights = self._costs.weight_bytes * passes + self._costs.expert_bytes(count, passes)
            self.bytes += steps * (weights + sum(self._costs.kv_bytes) * count)

    def _count_attention(self, costs: StepCosts, decode: "_Rows", chunks: "_Rows") -> None:
        for window, kv_bytes, pair_flops in zip(self._windows, costs.kv_bytes, costs.pair_flops, strict=True):
            seen = decode.pairs(window)
            self.flops += pair_flops * (seen + chunks.pairs(window))
            self.bytes += kv_bytes * (seen + chunks.keys(window))


class _Tokens(NamedTuple):
    """Tokens that one step computes, scores and draws."""

    prefill: int
    decode: int
    drawn: int
    scored: int
    padded: int


class _Rows(NamedTuple):
    """First positions and numbers of tokens, int [n]."""

    starts: np.ndarray
    counts: np.ndarray

    def pairs(self, window: int | None) -> int:
        """Queries times the keys that each of them sees."""
        if window is None:
            squares = int(self.counts @ self.counts) + int(self.counts.sum())
            return int(self.starts @ self.counts) + squares // 2
        return int((_seen_before(self.starts + self.counts, window) - _seen_before(self.starts, window)).sum())

    def keys(self, window: int | None) -> int:
        """Keys that a row's queries see, each counted once."""
        ends = self.starts + self.counts
        return int((ends if window is None else np.minimum(ends, window - 1 + self.counts)).sum())


def _seen_before(positions: np.ndarray, window: int) -> np.ndarray:
    """Keys that all queries before a position see, together."""
    inside = np.minimum(positions, window)
    return inside * (inside + 1) // 2 + (positions - inside) * window


_NONE = np.zeros(0, np.int64)


def _joined(plans: Sequence[_Rows]) -> _Rows:
    """The rows of all plans, int64."""
    starts, counts = zip((_NONE, _NONE), *plans, strict=True)
    return _Rows(np.concatenate(starts), np.concatenate(counts))
