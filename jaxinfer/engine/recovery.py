"""Recovery: after a step fault, who is queued again, and who has failed too often."""

from collections.abc import Iterable

from jaxinfer.engine.plan import StepPlan
from jaxinfer.engine.request import Request
from jaxinfer.engine.scheduler import Scheduler


def take_back(scheduler: Scheduler, void: Iterable[StepPlan]) -> list[Request]:
    """Queues every request that holds anything again; returns those that were in void steps too often.

    Any request in a void step may be what makes it fail, so each of them has failed once more; before one has its last
    try, each is computed alone (trials.py). Failures are counted anew once a request has come further than at any
    failure before: faults an hour apart end nobody, while what fails at one position again and again comes to an end,
    since positions are bounded.
    """
    table = scheduler.table
    # A slot that changed hands since was admitted by a later plan, which is void too.
    slots = {slot for plan in void for slot in (*plan.slots.tolist(), *(entry.slot for entry in plan.admissions))}
    tried = [request for slot in sorted(slots) if (request := table.requests[slot]) is not None]
    for request in tried:
        request.count_failure(int(table.collected[request.slot]), int(table.computed[request.slot]))
    scheduler.trials.note_fault(tried)
    scheduler.start_over()
    return [request for request in tried if request.failures > scheduler.config.max_step_retries]


def failure_text(request: Request, failure: str) -> str:
    """What a client is told of a request that has failed too often. failure: the name of the error's type."""
    return f"computing the next token failed with {failure} (tries: {request.failures})"
