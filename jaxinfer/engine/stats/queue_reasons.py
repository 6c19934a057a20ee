"""Why requests wait."""

from typing import NamedTuple

from jaxinfer.engine.scheduler.scheduler import Scheduler


class QueueReasons(NamedTuple):
    """Waiting requests by what they wait for.

    slots, blocks: nobody enters before one comes free. prefills: deferred until a long prompt that is half computed is
    done (`max_num_partial_prefills`). step: a step with room for them.
    """

    slots: int = 0
    blocks: int = 0
    prefills: int = 0
    step: int = 0


def queue_reasons(scheduler: Scheduler) -> QueueReasons:
    """Those of the last plan: the first of the queue holds up everyone that is not deferred. Safe in any thread."""
    state = scheduler.state
    prefills = state.queue.num_deferred
    others = max(0, state.queue.num_requests - prefills)
    if not state.table.num_free:
        return QueueReasons(slots=others, prefills=prefills)
    if scheduler.admission.failure is not None or state.must_drain:
        return QueueReasons(blocks=others, prefills=prefills)
    return QueueReasons(step=others, prefills=prefills)
