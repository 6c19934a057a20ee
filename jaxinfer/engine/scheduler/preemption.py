"""Which running sequences are preempted for waiting ones that outrank them."""

from collections import abc

from jaxinfer.engine.scheduler.queue import WaitingQueue
from jaxinfer.engine.sequence import Sequence


def outranks(head: Sequence, running: Sequence) -> bool:
    """Whether a waiting sequence may take what a running one has.

    Among tenants of one priority the rounds decide who is admitted: who came earlier has no claim to what another was
    given, and what one took from the other would be taken back for ever.
    """
    return head.rank < running.rank and (head.priority != running.priority or head.tenant == running.tenant)


def victims_for_slots(waiting: WaitingQueue, running: abc.Sequence[Sequence], *, deferred: bool) -> list[Sequence]:
    """One for each waiting sequence that outranks it: the last of `running`, which is in rank's order, first.

    Where the queue's order depends on what its next sequence will be charged, one for the next sequence alone.
    deferred: whether deferred sequences count.
    """
    victims: list[Sequence] = []
    heads: list[Sequence] = []
    for candidate in reversed(running):
        head = waiting.peek(deferred=deferred)
        if head is None or head.rank > candidate.rank:
            break
        if not outranks(head, candidate):
            continue
        victims.append(candidate)
        if not heads and not waiting.in_rank_order:
            break
        waiting.take(head)
        heads.append(head)
    for head in heads:
        waiting.push(head)
    return victims


def victims_for_blocks(head: Sequence, missing: int, running: abc.Sequence[Sequence]) -> list[Sequence]:
    """As few as hold `missing` blocks in each group, the last in rank first; none where they hold too few.

    Blocks that a victim shares are counted as if they came free: where they do not, the next plan asks again.
    """
    victims: list[Sequence] = []
    lacks = [missing] * len(head.kv.blocks)
    for sequence in reversed(running):
        if sequence.rank < head.rank:
            break
        if not outranks(head, sequence):
            continue
        victims.append(sequence)
        lacks = [lack - sum(map(bool, blocks)) for lack, blocks in zip(lacks, sequence.kv.blocks, strict=True)]
        if max(lacks) <= 0:
            return victims
    return []
