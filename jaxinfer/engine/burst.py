"""Bursts: several decode steps in one dispatch, planned where no row needs the host in between."""

from typing import TYPE_CHECKING

import numpy as np

from jaxinfer.engine.plan_builder import PlanBuilder

if TYPE_CHECKING:
    from jaxinfer.engine.scheduler import Scheduler


def burst_counts(scheduler: "Scheduler", order: np.ndarray) -> np.ndarray | None:
    """How many tokens each running slot of `order` may decode in one dispatch; None where one step is to be planned.

    That is where a row has a prompt to compute, or tells log-probabilities; where nobody has more than one token left;
    and where pages are too few: then the next step evicts, preempts, or waits.
    """
    table, size = scheduler.table, scheduler.shapes.page_size
    computed, total = table.computed[order], table.total[order]
    if not len(order) or table.logprobs[order].any() or not ((total - computed == 1) & table.draws[order]).all():
        return None
    counts = np.minimum(scheduler.shapes.decode_steps, table.limit[order] - total)
    pages = np.maximum(-(-(computed + counts) // size) - table.capacity[order] // size, 0)
    if counts.max() < 2 or pages.sum() > min(pool.num_available for pool in scheduler.kv.pools):
        return None
    return counts


def add_burst(scheduler: "Scheduler", plan: PlanBuilder, order: np.ndarray, counts: np.ndarray) -> None:
    """Adds the rows, and the pages that they need, of which there are enough."""
    table = scheduler.table
    ends = table.computed[order] + counts
    for row in np.flatnonzero(ends > table.capacity[order]).tolist():
        request = table.requests[order[row]]
        assert request is not None
        if not scheduler.kv.grow(request, int(ends[row])):
            raise RuntimeError("pages that were available are not")
        scheduler.send_new_pages(plan, request)
    plan.add_burst(order, counts)
