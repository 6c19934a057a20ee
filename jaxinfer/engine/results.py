"""From a collected step to what each sequence gained."""

from typing import NamedTuple

import numpy as np

from jaxinfer.engine.constraint import Matcher, MatcherError
from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.slot_table import SlotTable
from jaxinfer.engine.step.plan import MULTI_TOKEN, LogprobArrays, StepKind, StepPlan, StepResult
from jaxinfer.engine.types import FinishReason, RequestTimes, StepOutput, TokenDelta, TokenLogprobs

_NOT_FINITE = "the model's logits are not finite"


def apply_result(state: SchedulerState, plan: StepPlan, result: StepResult) -> StepOutput:
    """Confirms what a step computed, ends sequences that are done, and returns what each gained.

    Rows whose slot has changed hands since the plan was made (finished, aborted or preempted) are dropped.
    """
    table = state.table
    valid = table.epoch[plan.slots] == plan.epochs
    sampling = plan.samples > 0
    # NOTE: not the plan's, which are too high where a step before it gave a row fewer tokens than it asked for.
    firsts = table.known[plan.slots]
    if table.num_constrained and plan.kind is StepKind.MIXED:
        result = _with_foreseen(table, plan, result, np.flatnonzero(valid & sampling))
    if result.logprobs is not None and plan.kind is StepKind.MIXED:
        _take_prompt_logprobs(state, plan, valid, result.logprobs)
    (rows,) = (valid & sampling).nonzero()
    whole = len(rows) == plan.num_rows
    gained = (plan.slots, firsts, result.tokens, result.counts, result.finite)
    slots, first, tokens, counts, finite = gained if whole else (column[rows] for column in gained)
    known = first + counts
    joined = _learn_tokens(table, slots, first, tokens, counts)
    judged = _accept(state, slots, tokens, counts)
    table.known[slots] = known
    # A row that samples several tokens computed all of them but the last. The tree's keys are tokens: they come first.
    if whole:
        _commit(state, slots, known - 1)
    else:
        # Of tokens that are foreseen, a row that samples none has confirmed none.
        computed = np.minimum(plan.starts + plan.counts, firsts)
        ends = np.where(sampling, firsts + result.counts - 1, computed)
        _commit(state, plan.slots[valid], ends[valid])
    ending = ~finite | (known >= table.limit[slots])
    special = ending | _need_care(state, slots, tokens, counts)
    if judged:
        special[[number for number, judgement in judged.items() if judgement.final]] = True
    if result.predicted is not None:
        special |= result.predicted[rows] > 0
    if result.logprobs is not None:
        special[:] = True
    if not np.count_nonzero(special):  # twice as fast as any()
        deltas, plain = [], slice(None)
    else:
        numbers = np.flatnonzero(special).tolist()
        deltas = [_delta(state, plan, result, int(rows[number]), judged.get(number)) for number in numbers]
        plain = ~special
        joined = joined[np.repeat(plain, counts)]
    if tokens.shape[1] > 1:  # of those that an earlier step gave fewer than it asked for, too
        assert (counts > 0)[finite].all(), "a runner gave a row no token"
        _take_back(state, slots, plan.samples[rows] - counts, plan.epochs[rows])
    return StepOutput(table.sequence_id[slots[plain]], counts[plain], joined, deltas)


def _with_foreseen(table: SlotTable, plan: StepPlan, result: StepResult, rows: np.ndarray) -> StepResult:
    """Insert the foreseen tokens (`SchedulerState.foresee`) of these rows before the tokens that they have drawn."""
    ends = (plan.starts + plan.counts)[rows]
    more = np.where((rows >= plan.num_decode) & result.finite[rows], ends - table.known[plan.slots[rows]], 0)
    if not more.any():
        return result
    tokens, counts = np.zeros((plan.num_rows, more.max() + 1), np.int32), result.counts.copy()
    tokens[:, :1] = result.tokens
    for row, number, end in zip(rows.tolist(), more.tolist(), ends.tolist(), strict=True):
        tokens[row, :number] = table.tokens[plan.slots[row], end - number : end]
        tokens[row, number] = result.tokens[row, 0]
    counts[rows] += more
    return result._replace(tokens=tokens, counts=counts)


def _take_back(state: SchedulerState, slots: np.ndarray, missing: np.ndarray, epochs: np.ndarray) -> None:
    """Take back the tokens that a plan allowed and rows that go on did not get."""
    less = (missing > 0) & (state.table.epoch[slots] == epochs)
    if not less.all():
        slots, missing = slots[less], missing[less]
    state.take_back(slots, missing)


def _commit(state: SchedulerState, slots: np.ndarray, ends: np.ndarray) -> None:
    """Notes that slots are computed up to `ends`, and offers their full blocks to the tree."""
    size, table = state.shapes.block_size, state.table
    blocks = table.collected[slots] // size
    rows = np.flatnonzero(ends // size > blocks)
    table.collected[slots] = ends
    if not len(rows) or not state.kv.caching:
        return
    # Most rows have filled one block: their tokens are copied at once.
    filled, blocks, ends = slots[rows], blocks[rows], ends[rows]
    tokens = table.tokens[filled[:, None], blocks[:, None] * size + np.arange(size)]
    keys = tokens.view(f"V{tokens.itemsize * size}").ravel().tolist()  # a row's bytes each
    full = []
    for slot, block, end, key in zip(filled.tolist(), blocks.tolist(), (ends // size).tolist(), keys, strict=True):
        sequence = table.sequences[slot]
        assert sequence is not None
        if end == block + 1 and sequence.kv.committed == block:
            full.append((sequence.kv, key))
        else:
            state.kv.commit(sequence.kv, sequence.tokens, end * size)
    state.kv.commit_next(full)


def _learn_tokens(
    table: SlotTable, slots: np.ndarray, firsts: np.ndarray, tokens: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Writes sampled tokens, int32 [rows, Q], into the table, a row's from position `firsts` on. Returns those of all
    rows, one after another."""
    if tokens.shape[1] == 1 and np.count_nonzero(counts) == len(counts):
        table.tokens[slots, firsts] = tokens[:, 0]
        return tokens[:, 0]
    steps = np.arange(tokens.shape[1])
    given = steps < counts[:, None]
    places = (slots.astype(np.int64) * table.tokens.shape[1] + firsts)[:, None] + steps
    joined = tokens[given]
    table.tokens.reshape(-1)[places[given]] = joined  # faster by one index than by two
    return joined


def _need_care(state: SchedulerState, slots: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Rows that begin with these tokens, or stop at one of them: bool, an entry a row."""
    table = state.table
    last = tokens[:, 0] if tokens.shape[1] == 1 else tokens[np.arange(len(slots)), counts - 1]
    stops = (table.stop_ids[slots] == last[:, None]).any(axis=1)
    return stops | table.awaits_first_token[slots]


def _accept(
    state: SchedulerState, slots: np.ndarray, tokens: np.ndarray, counts: np.ndarray
) -> dict[int, "_Judgement"]:
    """Lets matchers know their sequences' new tokens; what each says, by row."""
    if not state.table.num_constrained:
        return {}
    found = {}
    for row in np.flatnonzero(state.table.constrained[slots] & (counts > 0)).tolist():
        sequence = state.table.sequences[slots[row]]
        assert sequence is not None
        assert sequence.matcher is not None
        new = tokens[row, : counts[row]].tolist()
        found[row] = _judge(sequence.matcher, new if new[-1] not in sequence.stop_ids else new[:-1])
    return found


def _judge(matcher: Matcher, tokens: list[int]) -> "_Judgement":
    try:
        matcher.accept(tokens)
    except MatcherError as error:
        return _Judgement(error=str(error))
    return _Judgement(ended=matcher.ended)


class _Judgement(NamedTuple):
    """A matcher's verdict on its sequence. ended: nothing may follow. error: it cannot go on."""

    ended: bool = False
    error: str | None = None

    @property
    def final(self) -> bool:
        return self.ended or self.error is not None


def _delta(
    state: SchedulerState, plan: StepPlan, result: StepResult, row: int, judgement: _Judgement | None
) -> TokenDelta:
    """The delta of a row that has more to report than its tokens; ends the sequence where this is its last."""
    table, slot = state.table, int(plan.slots[row])
    sequence = table.sequences[slot]
    assert sequence is not None
    finite, tokens = bool(result.finite[row]), result.tokens[row, : result.counts[row]].tolist()
    is_first, times = bool(table.awaits_first_token[slot]), _times(state, sequence)
    error = _NOT_FINITE if not finite else judgement and judgement.error
    sequence.finish_reason = FinishReason.ERROR if error else _finish_reason(sequence, tokens, judgement)
    stopped = sequence.finish_reason is FinishReason.STOP and tokens[-1] in sequence.stop_ids
    logprobs = None
    if result.logprobs is not None and tokens and sequence.params.logprobs is not None:
        first = int(plan.last_scored[row])
        places = [first] if plan.kind not in MULTI_TOKEN else [(row, step) for step in range(len(tokens))]
        asked = sequence.params.logprobs
        logprobs = [
            _read_logprobs(result.logprobs, at, token, asked) for at, token in zip(places, tokens, strict=False)
        ]
    table.awaits_first_token[slot] = False
    accepted, rejected = _prediction_drafts(result, row)
    if sequence.finish_reason is not None:
        state.finish(sequence)
    return TokenDelta(
        sequence.request_id,
        sequence.index,
        tokens,
        logprobs,
        sequence.finish_reason,
        stop_token_id=tokens[-1] if stopped else None,
        cached_tokens=sequence.cached_tokens,
        prompt_logprobs=sequence.prompt_logprobs if is_first and finite else None,
        error=error,
        param=sequence.constraint_param if finite and error else None,
        times=times,
        sequence_id=sequence.sequence_id,
        preemptions=0 if sequence.finish_reason is None else sequence.preemptions,
        accepted_prediction=accepted,
        rejected_prediction=rejected,
    )


def _prediction_drafts(result: StepResult, row: int) -> tuple[int, int]:
    """Return how many of a row's drafts from its prediction were kept, and how many were dropped."""
    if result.predicted is None or not result.predicted[row]:
        return 0, 0
    assert result.drafted is not None
    assert result.accepted is not None
    accepted = int(result.accepted[row])
    return accepted, int(result.drafted[row]) - accepted


def _finish_reason(sequence: Sequence, tokens: list[int], judgement: _Judgement | None) -> FinishReason | None:
    if tokens[-1] in sequence.stop_ids or (judgement is not None and judgement.ended):
        return FinishReason.STOP
    return FinishReason.LENGTH if sequence.num_known >= sequence.limit else None


def _times(state: SchedulerState, sequence: Sequence) -> RequestTimes | None:
    """Return the times of a sequence whose first token has come; None for later tokens, and for the request's other
    sequences."""
    if sequence.index or not state.table.awaits_first_token[sequence.slot]:
        return None
    assert sequence.scheduled_at is not None
    queue, prefill = sequence.scheduled_at - sequence.queued_at, state.clock() - sequence.scheduled_at
    return RequestTimes(queue * 1e-9, prefill * 1e-9)


def _take_prompt_logprobs(state: SchedulerState, plan: StepPlan, valid: np.ndarray, arrays: LogprobArrays) -> None:
    last_scored = plan.last_scored
    for row in range(plan.num_decode, plan.num_rows):
        count = int(plan.scored[row]) - int(plan.samples[row])
        sequence = state.table.sequences[plan.slots[row]]
        if not valid[row] or not count or sequence is None or sequence.prompt_logprobs is None:
            continue
        first = int(last_scored[row]) + 1 - int(plan.scored[row])
        asked = sequence.params.prompt_logprobs or 0
        for i in range(count):
            target = int(plan.targets[first + i - plan.num_decode])
            sequence.prompt_logprobs.append(_read_logprobs(arrays, first + i, target, asked))


def _read_logprobs(arrays: LogprobArrays, at: int | tuple[int, int], token: int, asked: int) -> TokenLogprobs:
    """Log-probabilities of scored position `at`: of `token` and of the `asked` most likely."""
    top = list(zip(arrays.top_ids[at][:asked].tolist(), arrays.top_logprobs[at][:asked].tolist(), strict=True))
    return TokenLogprobs(token, float(arrays.logprobs[at]), int(arrays.ranks[at]), top)
