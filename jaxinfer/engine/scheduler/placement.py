"""The choice of a shard for a sequence."""

from collections import abc

import numpy as np

from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Sequence


def shards_by_cost(state: SchedulerState, sequence: Sequence, shards: abc.Sequence[int]) -> abc.Sequence[int]:
    """`shards` in the order to try for a sequence that holds no blocks, the cheapest first.

    The cost of a shard is the tokens that it would compute for the sequence, since they are not cached there, and the
    tokens of its running sequences, which every decode step reads. Among equals the longest cached prefix comes first.
    """
    if len(shards) < 2:
        return shards
    slots = state.running_slots()
    held = np.bincount(state.table.shards_of(slots), state.table.total[slots], minlength=len(state.kv_shards))
    cached = {shard: _cached_tokens(state, sequence, shard) for shard in shards}
    # What the sequence itself adds is the same everywhere but for what is cached.
    return sorted(shards, key=lambda shard: (held[shard] - cached[shard], -cached[shard], shard))


def _cached_tokens(state: SchedulerState, sequence: Sequence, shard: int) -> int:
    if sequence.owes_prompt_logprobs:
        return 0
    return state.kv_shards[shard].cached_tokens(sequence.kv, sequence.tokens)
