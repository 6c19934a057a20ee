"""read_stats: an engine's statistics from its parts."""

from typing import TYPE_CHECKING

from jaxinfer.engine.laps import APPLY, DISPATCH, IDLE, OTHER, SCHEDULE, WAIT
from jaxinfer.engine.queue_reasons import queue_reasons
from jaxinfer.engine.types import EngineStats

if TYPE_CHECKING:
    from jaxinfer.engine.core import EngineCore


def read_stats(core: "EngineCore") -> EngineStats:
    """Gauges now, totals since start; some ten microseconds. Safe in any thread."""
    scheduler, laps, work, memory = core.scheduler, core.laps, core.work, core.runner.memory()
    reasons = queue_reasons(scheduler)
    return EngineStats(
        running=scheduler.table.num_taken,
        waiting=core.num_waiting,
        kv_pages_used=scheduler.kv.pages_in_use,
        kv_pages_total=scheduler.kv.pages_total,
        preemptions=scheduler.num_preemptions,
        prefix_queries=scheduler.entry.prefix_queries,
        prefix_hits=scheduler.entry.prefix_hits,
        admitted_tokens=scheduler.entry.admitted_tokens,
        prompt_tokens=core.prompt_tokens,
        generation_tokens=core.generation_tokens,
        steps=core.flight.dispatched,
        compiles_after_ready=getattr(core.runner, "compiles_after_ready", 0),
        step_faults=core.step_faults,
        abandoned_requests=core.abandoned_requests,
        waiting_for_slots=reasons.slots,
        waiting_for_pages=reasons.pages,
        waiting_for_prefills=reasons.prefills,
        waiting_for_step=reasons.step,
        schedule_seconds=laps.seconds(SCHEDULE),
        dispatch_seconds=laps.seconds(DISPATCH),
        wait_seconds=laps.seconds(WAIT),
        apply_seconds=laps.seconds(APPLY),
        other_seconds=laps.seconds(OTHER),
        idle_seconds=laps.seconds(IDLE),
        in_flight_seconds=laps.in_flight_seconds,
        starved_seconds=laps.starved_seconds,
        decode_steps=work.decode_steps,
        mixed_steps=work.mixed_steps,
        burst_steps=work.burst_steps,
        decode_tokens=work.decode_tokens,
        prefill_tokens=work.prefill_tokens,
        padded_tokens=work.padded_tokens,
        flops=work.flops,
        bytes=work.bytes,
        iteration_tokens=work.iteration_tokens,
        step_tokens=tuple(work.step_tokens),
        memory_used=memory.used,
        memory_peak=memory.peak,
        memory_limit=memory.limit,
    )
