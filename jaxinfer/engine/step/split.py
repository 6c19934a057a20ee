"""split_plan: the part of a plan that each shard computes."""

from typing import NamedTuple

import numpy as np

from jaxinfer.engine.step.plan import StepPlan
from jaxinfer.engine.step.shapes import EngineShapes


class ShardPlan(NamedTuple):
    """plan: a shard's rows, in their order, with slots as the shard numbers them. rows, scored: which of the whole
    plan's rows and scored positions those are, int arrays."""

    plan: StepPlan
    rows: np.ndarray
    scored: np.ndarray


def split_plan(plan: StepPlan, shapes: EngineShapes) -> list[ShardPlan]:
    """A part for each shard, of the whole plan's kind, with slot initialisations and copies of all of them."""
    return [_part(plan, shard, shapes.max_num_seqs) for shard in range(shapes.shards)]


def _part(plan: StepPlan, shard: int, shard_slots: int) -> ShardPlan:
    own = plan.slots // shard_slots == shard
    rows = np.flatnonzero(own)
    chunks = slice(plan.num_decode, None)
    first = shard * shard_slots
    part = plan._replace(
        slots=plan.slots[rows] - first,
        epochs=plan.epochs[rows],
        starts=plan.starts[rows],
        counts=plan.counts[rows],
        scored=plan.scored[rows],
        samples=plan.samples[rows],
        unread=plan.unread[rows],
        num_decode=int(np.count_nonzero(own[: plan.num_decode])),
        tokens=plan.tokens[np.repeat(own[chunks], plan.counts[chunks])],
        targets=plan.targets[np.repeat(own[chunks], plan.scored[chunks])],
        drawn=None if plan.drawn is None else plan.drawn[rows],
        block_updates=tuple(_updates(updates, shard, shard_slots) for updates in plan.block_updates),
    )
    return ShardPlan(part, rows, np.flatnonzero(np.repeat(own, plan.scored)))


def _updates(updates: np.ndarray, shard: int, shard_slots: int) -> np.ndarray:
    own = updates[updates[:, 0] // shard_slots == shard]
    return own - np.array([shard * shard_slots, 0, 0], own.dtype)
