"""From a collected burst to what each request gained."""

import numpy as np

from jaxinfer.engine.results import add_tokens, commit
from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.step.plan import StepPlan, StepResult
from jaxinfer.engine.types import StepOutput


def apply_burst(state: SchedulerState, plan: StepPlan, result: StepResult) -> StepOutput:
    """Confirms what a burst computed, ends requests that are done, and returns what each gained.

    Rows whose slot has changed hands since the plan was made are dropped.
    """
    table, slots = state.table, plan.slots
    valid = table.serial[slots] == plan.serials
    steps = np.arange(plan.counts.max())
    inside = steps < plan.counts[:, None]
    tokens = np.zeros(inside.shape, np.int32)
    tokens[inside] = result.tokens
    stops = (table.stop_ids[slots][:, None, :] == tokens[:, :, None]).any(axis=2) | (tokens < 0)
    ends = stops & inside
    stopped = ends.any(axis=1)
    kept = np.where(stopped, ends.argmax(axis=1) + 1, plan.counts)
    known = plan.starts + 1 + kept
    row, step = np.nonzero((steps < kept[:, None]) & valid[:, None])
    table.tokens[slots[row], plan.starts[row] + 1 + step] = tokens[row, step]
    table.known[slots[valid]] = known[valid]
    special = valid & (stopped | table.fresh[slots] | (known >= table.limit[slots]))
    commit(state, plan, plan.starts + kept, valid)
    deltas = [
        add_tokens(state, int(slots[row]), tokens[row, : kept[row]].tolist(), 0, None)
        for row in np.flatnonzero(special).tolist()
    ]
    plain = valid & ~special
    own = tokens[(steps < kept[:, None]) & plain[:, None]]
    return StepOutput(table.handle[slots[plain]], kept[plain].astype(np.int32), own, deltas)
