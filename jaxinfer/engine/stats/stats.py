"""read_stats: an engine's statistics from its parts."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxinfer.engine.constraint import ConstraintStats
from jaxinfer.engine.device.runner import DeviceMemory, ExpertTokens, Runner
from jaxinfer.engine.scheduler.scheduler import Scheduler
from jaxinfer.engine.stats.counters import (
    AdmissionStats,
    CoreStats,
    DeviceStats,
    DraftStats,
    EngineStats,
    ExpertStats,
    KVStats,
    SchedulerStats,
    StepStats,
    TimeStats,
    read_record,
)
from jaxinfer.engine.stats.drafts import DraftTotals
from jaxinfer.engine.stats.hosts import HostReading
from jaxinfer.engine.stats.step_cost import StepCostTotals
from jaxinfer.engine.stats.step_timer import IDLE, StepTimer


def read_stats(
    scheduler: Scheduler,
    runner: Runner,
    timer: StepTimer,
    costs: StepCostTotals,
    counters: Any,
    constraints: ConstraintStats,
    drafts: DraftTotals,
    hosts: Iterable[HostReading] = (),
) -> EngineStats:
    """Gauges now, totals since start; tens of microseconds. Safe in any thread. counters: `totals` of CoreStats."""
    kv, status = scheduler.state.kv, runner.status()
    return EngineStats(
        scheduler=read_record(SchedulerStats, scheduler.state, **_requests(scheduler)),
        admission=read_record(AdmissionStats, scheduler.admission),
        kv=KVStats(kv.blocks_in_use, kv.blocks_total),
        core=read_record(CoreStats, counters),
        constraints=constraints,
        time=TimeStats(
            *(timer.seconds(part) for part in range(IDLE + 1)),
            in_flight_seconds=timer.in_flight_seconds,
            starved_seconds=timer.starved_seconds,
        ),
        steps=read_record(StepStats, costs),
        drafts=read_record(DraftStats, drafts),
        experts=_experts(status.expert_load),
        device=read_record(DeviceStats, status, **_memory(status.memory)),
        hosts=tuple(hosts),
    )


def _memory(devices: Iterable[DeviceMemory]) -> dict[str, tuple[int, ...]]:
    return {f"memory_{name}": tuple(getattr(each, name) for each in devices) for name in DeviceMemory._fields}


def _experts(load: ExpertTokens | None) -> ExpertStats:
    if load is None:
        return ExpertStats()
    return ExpertStats(
        tokens=tuple(load.experts.sum(axis=0).tolist()),
        imbalance=_imbalance(load.experts),
        device_imbalance=() if load.devices is None else _imbalance(load.devices),
        placements=load.placed,
    )


def _imbalance(tokens: np.ndarray) -> tuple[float, ...]:
    """tokens: [layers, experts or devices]. A layer that has computed none is even."""
    mean = tokens.mean(axis=1)
    return tuple(np.divide(tokens.max(axis=1), mean, out=np.ones(len(tokens)), where=mean > 0).tolist())


def _requests(scheduler: Scheduler) -> dict[str, float]:
    """Return requests with a slot, and those that wait, by what they wait for. Those of the last plan: the first of the
    queue holds up everyone that is not deferred.

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
    waiting = state.queue.num_requests
    by_reason = {"slots": 0, "blocks": 0, "prefills": deferred, "step": 0} | {reason: max(0, waiting - deferred)}
    return {
        "running": state.table.num_taken,
        "waiting": waiting,
        "expected_wait": scheduler.expected_wait(),
        **{f"waiting_for_{each}": count for each, count in by_reason.items()},
    }
