"""read_stats: an engine's statistics from its parts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxinfer.engine.constraint import ConstraintStats
from jaxinfer.engine.device.runner import ExpertTokens, Runner
from jaxinfer.engine.scheduler.scheduler import Scheduler
from jaxinfer.engine.stats.drafts import DraftTotals
from jaxinfer.engine.stats.hosts import HostReading
from jaxinfer.engine.stats.step_cost import StepCostTotals
from jaxinfer.engine.stats.step_timer import APPLY, CONSTRAIN, DISPATCH, IDLE, OTHER, SCHEDULE, WAIT, StepTimer
from jaxinfer.engine.types import EngineStats


@dataclass
class EngineCounters:
    """Totals that the engine's core keeps; as in EngineStats."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    step_faults: int = 0
    abandoned_requests: int = 0
    constraint_failures: int = 0
    forced_tokens: int = 0
    mask_wait_seconds: float = 0.0


def read_stats(
    scheduler: Scheduler,
    runner: Runner,
    timer: StepTimer,
    costs: StepCostTotals,
    counters: EngineCounters,
    constraints: ConstraintStats,
    drafts: DraftTotals,
    hosts: Iterable[HostReading] = (),
) -> EngineStats:
    """Gauges now, totals since start; some ten microseconds. Safe in any thread."""
    state, device = scheduler.state, runner.status()
    return EngineStats(
        running=state.table.num_taken,
        waiting=state.queue.num_requests,
        kv_blocks_used=state.kv.blocks_in_use,
        kv_blocks_total=state.kv.blocks_total,
        preemptions=state.num_preemptions,
        expected_wait=scheduler.expected_wait(),
        prefix_queries=scheduler.admission.prefix_queries,
        prefix_hits=scheduler.admission.prefix_hits,
        admitted_tokens=scheduler.admission.admitted_tokens,
        **vars(counters),
        **constraints._asdict(),
        compiles_after_ready=device.compiles_after_ready,
        **_waiting_by_reason(scheduler),
        schedule_seconds=timer.seconds(SCHEDULE),
        dispatch_seconds=timer.seconds(DISPATCH),
        constrain_seconds=timer.seconds(CONSTRAIN),
        wait_seconds=timer.seconds(WAIT),
        apply_seconds=timer.seconds(APPLY),
        other_seconds=timer.seconds(OTHER),
        idle_seconds=timer.seconds(IDLE),
        in_flight_seconds=timer.in_flight_seconds,
        starved_seconds=timer.starved_seconds,
        decode_steps=costs.decode_steps,
        mixed_steps=costs.mixed_steps,
        multi_step_steps=costs.multi_step_steps,
        speculate_steps=costs.speculate_steps,
        drafts=drafts.drafts,
        draft_tokens=drafts.drafted,
        accepted_tokens=drafts.accepted,
        accepted_at=tuple(drafts.accepted_at.tolist()),
        decode_tokens=costs.decode_tokens,
        prefill_tokens=costs.prefill_tokens,
        padded_tokens=costs.padded_tokens,
        flops=float(costs.flops),
        bytes=float(costs.bytes),
        iteration_tokens=costs.iteration_tokens,
        step_tokens=tuple(costs.step_tokens),
        **_of_experts(device.expert_load),
        memory_used=tuple(memory.used for memory in device.memory),
        memory_peak=tuple(memory.peak for memory in device.memory),
        memory_limit=tuple(memory.limit for memory in device.memory),
        **_of_hosts(list(hosts)),
    )


def _of_hosts(hosts: Sequence[HostReading]) -> dict[str, Any]:
    return {f"host_{name}": tuple(getattr(host, name) for host in hosts) for name in HostReading._fields}


def _of_experts(load: ExpertTokens | None) -> dict[str, Any]:
    if load is None:
        return {}
    return {
        "expert_tokens": tuple(load.experts.sum(axis=0).tolist()),
        "expert_imbalance": _imbalance(load.experts),
        "expert_device_imbalance": () if load.devices is None else _imbalance(load.devices),
        "expert_placements": load.placed,
    }


def _imbalance(tokens: np.ndarray) -> tuple[float, ...]:
    """tokens: [layers, experts or devices]. A layer that has computed none is even."""
    mean = tokens.mean(axis=1)
    return tuple(np.divide(tokens.max(axis=1), mean, out=np.ones(len(tokens)), where=mean > 0).tolist())


def _waiting_by_reason(scheduler: Scheduler) -> dict[str, int]:
    """Waiting requests by what they wait for. Those of the last plan: the first of the queue holds up everyone that is
    not deferred.

    slots, blocks: nobody enters before one comes free; of a fork's shard, where others pass it. prefills: deferred
    until a long prompt that is half computed is done (`max_num_partial_prefills`). step: a step with room for them.
    """
    state = scheduler.state
    deferred = state.queue.num_deferred
    if not state.table.num_free:
        reason = "slots"
    elif scheduler.admission.failures or state.must_drain:
        reason = "blocks"
    else:
        reason = "slots" if state.queue.has_passed else "step"
    return {
        "waiting_for_prefills": deferred,
        f"waiting_for_{reason}": max(0, state.queue.num_requests - deferred),
    }
