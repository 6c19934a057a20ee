"""From a collected step to what each request gained."""

from typing import NamedTuple

import numpy as np

from jaxinfer.engine.plan import LogprobArrays, StepPlan, StepResult
from jaxinfer.engine.request import Request
from jaxinfer.engine.scheduler import Scheduler
from jaxinfer.engine.types import FinishReason, RequestTimes, TokenDelta, TokenLogprobs

_NOT_FINITE = "the model's logits are not finite"


class Applied(NamedTuple):
    """What one collected step gave. ended holds those of `deltas` that are a choice's last."""

    deltas: list[TokenDelta]
    ended: list[TokenDelta]


def apply_result(scheduler: Scheduler, plan: StepPlan, result: StepResult) -> Applied:
    """Confirms what a step computed, ends requests that are done, and returns what each gained.

    Rows whose slot has changed hands since the plan was made (finished, aborted or preempted) are dropped.
    """
    table = scheduler.table
    valid = table.serial[plan.slots] == plan.serials
    _commit(scheduler, plan, valid)
    last_scored = np.cumsum(plan.scored) - 1
    if result.logprobs is not None and not plan.decode_only:
        _take_prompt_logprobs(scheduler, plan, valid, last_scored, result.logprobs)
    drawing = np.flatnonzero(valid & plan.draws)
    scored = last_scored[drawing]
    special = _needs_care(scheduler, plan, drawing, result.tokens[scored], result.logprobs)
    plain, others = drawing[~special], drawing[special]
    deltas = _add_plain(scheduler, plan.slots[plain], result.tokens[last_scored[plain]])
    ended: list[TokenDelta] = []
    for row in others.tolist():
        request = table.requests[plan.slots[row]]
        assert request is not None
        at = int(last_scored[row])
        times = _times(scheduler, request)
        deltas.append(_add_token(request, int(result.tokens[at]), at, result.logprobs, times))
        if request.finish_reason is not None:
            scheduler.finish(request)
            ended.append(deltas[-1])
    return Applied(deltas, ended)


def _needs_care(
    scheduler: Scheduler, plan: StepPlan, drawing: np.ndarray, tokens: np.ndarray, logprobs: LogprobArrays | None
) -> np.ndarray:
    """Rows that begin or end with this token, failed, or report log-probabilities: bool, an entry a drawing row."""
    if logprobs is not None:
        return np.ones(len(drawing), bool)
    table, slots = scheduler.table, plan.slots[drawing]
    known = plan.starts[drawing] + plan.counts[drawing] + 1
    stops = (table.stop_ids[slots] == tokens[:, None]).any(axis=1)
    return stops | table.fresh[slots] | (tokens < 0) | (known >= table.limit[slots])


def _add_plain(scheduler: Scheduler, slots: np.ndarray, tokens: np.ndarray) -> list[TokenDelta]:
    """Most rows of most steps: a token, and nothing else to say."""
    requests = scheduler.table.requests
    new = tuple.__new__  # TokenDelta(...) would go through its default arguments, once a token
    deltas = []
    for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
        request = requests[slot]
        assert request is not None
        request.tokens.append(token)
        fields = (request.request_id, request.index, [token], None, None, None, request.cached_tokens, None, None, None)
        deltas.append(new(TokenDelta, fields))
    return deltas


def _times(scheduler: Scheduler, request: Request) -> RequestTimes | None:
    """Those of a request whose first token has come; None for later tokens."""
    if not scheduler.table.fresh[request.slot]:
        return None
    scheduler.table.fresh[request.slot] = False
    assert request.scheduled_at is not None
    queue, prefill = request.scheduled_at - request.queued_at, scheduler.clock() - request.scheduled_at
    return RequestTimes(queue * 1e-9, prefill * 1e-9)


def _commit(scheduler: Scheduler, plan: StepPlan, valid: np.ndarray) -> None:
    size = scheduler.shapes.page_size
    ends = plan.starts + plan.counts
    scheduler.table.collected[plan.slots[valid]] = ends[valid]
    for row in np.flatnonzero(valid & (ends // size > plan.starts // size)).tolist():
        request = scheduler.table.requests[plan.slots[row]]
        assert request is not None
        scheduler.kv.commit(request, int(ends[row]))


def _add_token(
    request: Request, token: int, at: int, arrays: LogprobArrays | None, times: RequestTimes | None
) -> TokenDelta:
    if token < 0:
        request.finish_reason = FinishReason.ERROR
        return TokenDelta(request.request_id, request.index, [], finish_reason=FinishReason.ERROR, error=_NOT_FINITE)
    request.tokens.append(token)
    stopped_by = None
    if token in request.stop_ids:
        request.finish_reason, stopped_by = FinishReason.STOP, token
    elif len(request.tokens) >= request.limit:
        request.finish_reason = FinishReason.LENGTH
    logprobs = prompt_logprobs = None
    if arrays is not None:
        if request.params.logprobs is not None:
            logprobs = [read_logprobs(arrays, at, token, request.params.logprobs)]
        if request.num_outputs == 1:
            prompt_logprobs = request.prompt_logprobs
    return TokenDelta(
        request.request_id,
        request.index,
        [token],
        logprobs,
        request.finish_reason,
        stopped_by,
        request.cached_tokens,
        prompt_logprobs,
        times=times,
    )


def _take_prompt_logprobs(
    scheduler: Scheduler, plan: StepPlan, valid: np.ndarray, last_scored: np.ndarray, arrays: LogprobArrays
) -> None:
    for row in range(plan.num_decode, plan.num_rows):
        count = int(plan.scored[row]) - int(plan.draws[row])
        request = scheduler.table.requests[plan.slots[row]]
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
