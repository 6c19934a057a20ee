"""From a collected step to what each request gained."""

import numpy as np

from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Request
from jaxinfer.engine.step.plan import LogprobArrays, StepPlan, StepResult
from jaxinfer.engine.types import FinishReason, RequestTimes, StepOutput, TokenDelta, TokenLogprobs

_NOT_FINITE = "the model's logits are not finite"


def apply_result(state: SchedulerState, plan: StepPlan, result: StepResult) -> StepOutput:
    """Confirms what a step computed, ends requests that are done, and returns what each gained.

    Rows whose slot has changed hands since the plan was made (finished, aborted or preempted) are dropped.
    """
    table = state.table
    valid = table.serial[plan.slots] == plan.serials
    ends = plan.starts + plan.counts
    commit(state, plan, ends, valid)
    last_scored = np.cumsum(plan.scored) - 1
    if result.logprobs is not None and not plan.decode_only:
        _take_prompt_logprobs(state, plan, valid, last_scored, result.logprobs)
    drawing = np.flatnonzero(valid & plan.draws)
    slots, scored = plan.slots[drawing], last_scored[drawing]
    tokens = result.tokens[scored]
    table.tokens[slots, ends[drawing]] = tokens
    table.known[slots] = ends[drawing] + 1
    special = _needs_care(state, slots, tokens, result.logprobs)
    if not special.any():
        return StepOutput(table.handle[slots], np.ones(len(slots), np.int32), tokens, [])
    deltas = [
        add_tokens(state, slot, [token], at, result.logprobs)
        for slot, token, at in zip(*(x[special].tolist() for x in (slots, tokens, scored)), strict=True)
    ]
    plain = ~special
    return StepOutput(table.handle[slots[plain]], np.ones(int(plain.sum()), np.int32), tokens[plain], deltas)


def _needs_care(
    state: SchedulerState, slots: np.ndarray, tokens: np.ndarray, logprobs: LogprobArrays | None
) -> np.ndarray:
    """Rows that begin or end with this token, failed, or report log-probabilities: bool, an entry a slot."""
    if logprobs is not None:
        return np.ones(len(slots), bool)
    table = state.table
    stops = (table.stop_ids[slots] == tokens[:, None]).any(axis=1)
    return stops | table.fresh[slots] | (tokens < 0) | (table.known[slots] >= table.limit[slots])


def commit(state: SchedulerState, plan: StepPlan, ends: np.ndarray, valid: np.ndarray) -> None:
    """Notes that `valid` rows are computed up to `ends`, and offers their full pages to the tree."""
    size = state.shapes.page_size
    state.table.collected[plan.slots[valid]] = ends[valid]
    full = valid & (ends // size > plan.starts // size)
    for slot, end in zip(plan.slots[full].tolist(), ends[full].tolist(), strict=True):
        request = state.table.requests[slot]
        assert request is not None
        state.kv.commit(request, end)


def add_tokens(
    state: SchedulerState, slot: int, tokens: list[int], at: int, arrays: LogprobArrays | None
) -> TokenDelta:
    """The delta of tokens that have more to say than their ids; ends the request where the last one is its last.

    at: the scored position of a single token. The table knows them already; a last one of -1 is forgotten.
    """
    table, token = state.table, tokens[-1]
    request = table.requests[slot]
    assert request is not None
    first, times = bool(table.fresh[slot]), _times(state, request)
    if token < 0:
        table.known[slot] -= 1
        request.finish_reason = FinishReason.ERROR
    elif token in request.stop_ids:
        request.finish_reason = FinishReason.STOP
    elif table.known[slot] >= request.limit:
        request.finish_reason = FinishReason.LENGTH
    logprobs = None
    if arrays is not None and token >= 0 and request.params.logprobs is not None:
        logprobs = [read_logprobs(arrays, at, token, request.params.logprobs)]
    table.fresh[slot] = False
    if request.finish_reason is not None:
        state.finish(request)
    return TokenDelta(
        request.request_id,
        request.index,
        tokens if token >= 0 else tokens[:-1],
        logprobs,
        request.finish_reason,
        stop_token_id=token if request.finish_reason is FinishReason.STOP else None,
        cached_tokens=request.cached_tokens,
        prompt_logprobs=request.prompt_logprobs if first and token >= 0 else None,
        error=_NOT_FINITE if token < 0 else None,
        times=times,
        handle=request.handle,
        preemptions=0 if request.finish_reason is None else request.preemptions,
    )


def _times(state: SchedulerState, request: Request) -> RequestTimes | None:
    """Those of a request whose first token has come; None for later tokens, and for later choices."""
    if request.index or not state.table.fresh[request.slot]:
        return None
    assert request.scheduled_at is not None
    queue, prefill = request.scheduled_at - request.queued_at, state.clock() - request.scheduled_at
    return RequestTimes(queue * 1e-9, prefill * 1e-9)


def _take_prompt_logprobs(
    state: SchedulerState, plan: StepPlan, valid: np.ndarray, last_scored: np.ndarray, arrays: LogprobArrays
) -> None:
    for row in range(plan.num_decode, plan.num_rows):
        count = int(plan.scored[row]) - int(plan.draws[row])
        request = state.table.requests[plan.slots[row]]
        if not valid[row] or not count or request is None or request.prompt_logprobs is None:
            continue
        first = int(last_scored[row]) + 1 - int(plan.scored[row])
        asked = request.params.prompt_logprobs or 0
        for i in range(count):
            target = int(plan.targets[first + i - plan.num_decode])
            request.prompt_logprobs.append(read_logprobs(arrays, first + i, target, asked))


def read_logprobs(arrays: LogprobArrays, at: int, token: int, asked: int) -> TokenLogprobs:
    """Log-probabilities of scored position `at`: of `token` and of the `asked` most likely."""
    top = list(zip(arrays.top_ids[at, :asked].tolist(), arrays.top_logprobs[at, :asked].tolist(), strict=True))
    return TokenLogprobs(token, float(arrays.logprobs[at]), int(arrays.ranks[at]), top)
