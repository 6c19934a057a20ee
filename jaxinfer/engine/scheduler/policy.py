"""The order in which waiting sequences are served, and in which running ones are preempted.

A rank never changes: waiting makes all sequences older at the same rate, so whatever ageing gives them, the order
of two of them stays as it is. A heap keyed by rank is then exact, what resumes after preemption keeps its place,
and the best of all sequences is never preempted: something always ends.
"""

from collections.abc import Callable
from typing import Protocol

from jaxinfer.config import SchedulerConfig
from jaxinfer.engine.sequence import Sequence

_NANOSECONDS = 1_000_000_000
_AGEING_SECONDS = 60.0
_TOKENS_PER_SECOND = 1000.0


class Policy(Protocol):
    """A total order over sequences: the lowest rank is served first and preempted last.

    preempts: whether a waiting sequence may take the slot or the blocks of a running one that it outranks.
    uses_priority: whether requests may bring a priority.
    """

    preempts: bool
    uses_priority: bool

    def rank(self, sequence: Sequence) -> tuple[int, ...]:
        """Asked once, when a sequence is queued. The last entry is its index."""
        ...


class FirstComeFirstServed:
    """The order of arrival; sequences of one request by their index."""

    preempts = False
    uses_priority = False

    def rank(self, sequence: Sequence) -> tuple[int, ...]:
        return (sequence.arrival, sequence.index)


class PriorityFirst:
    """The order of priority, the lower the better, then of arrival.

    ageing_seconds: waiting time that is worth a level of priority: a sequence goes before all that come later than
    that, though they are a level better. So it has a deadline, arrival + priority · ageing_seconds, and the earliest
    goes first. 0: no ageing; a steady stream of better sequences then keeps the others waiting for ever.
    """

    preempts = True
    uses_priority = True

    def __init__(self, ageing_seconds: float):
        self._level = round(ageing_seconds * _NANOSECONDS)

    def rank(self, sequence: Sequence) -> tuple[int, ...]:
        if not self._level:
            return (sequence.priority, sequence.arrival, sequence.index)
        return (sequence.queued_at + sequence.priority * self._level, sequence.arrival, sequence.index)


class ShortestJobFirst:
    """The order of prompt tokens that are not in the prefix cache, then of arrival.

    That is the work that is known when a request comes, and that its first token waits for. `max_tokens` is left
    out: it bounds the output and does not predict it, most clients leave it at a default, and an output shares its
    steps with others, while a prompt fills its own.
    tokens_per_second: prompt tokens that a second of waiting makes up for. 0: no ageing.
    """

    preempts = False
    uses_priority = False

    def __init__(self, tokens_per_second: float, cached_tokens: Callable[[Sequence], int]):
        self._token = round(_NANOSECONDS / tokens_per_second) if tokens_per_second else 0
        self._cached_tokens = cached_tokens

    def rank(self, sequence: Sequence) -> tuple[int, ...]:
        work = sequence.prompt_len - self._cached_tokens(sequence)
        if not self._token:
            return (work, sequence.arrival, sequence.index)
        return (sequence.queued_at + work * self._token, sequence.arrival, sequence.index)


def make_policy(config: SchedulerConfig, cached_tokens: Callable[[Sequence], int]) -> Policy:
    """The policy that a configuration names. cached_tokens: prompt tokens of a sequence in the prefix cache now."""
    if config.scheduling_policy == "fcfs":
        return FirstComeFirstServed()
    if config.scheduling_policy == "priority":
        seconds = config.priority_ageing_seconds
        return PriorityFirst(_AGEING_SECONDS if seconds is None else seconds)
    rate = config.sjf_tokens_per_second
    return ShortestJobFirst(_TOKENS_PER_SECOND if rate is None else rate, cached_tokens)
