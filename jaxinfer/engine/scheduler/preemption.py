"""Which running requests give way to waiting ones that outrank them."""

from collections.abc import Sequence

from jaxinfer.engine.scheduler.queue import WaitingQueue
from jaxinfer.engine.sequence import Request


def outranks(head: Request, running: Request) -> bool:
    """Whether a waiting request may take what a running one has.

    Among tenants of one priority the rounds decide who is admitted: who came earlier has no claim to what another was
    given, and what one took from the other would be taken back for ever.
    """
    return head.rank < running.rank and (head.priority != running.priority or head.tenant == running.tenant)


def victims_for_slots(waiting: WaitingQueue, running: Sequence[Request], *, deferred: bool) -> list[Request]:
    """One for each waiting request that outranks it: the last of `running`, which is in rank's order, first.

    Where the queue's order depends on what its next request will be charged, one for the next request alone.
    deferred: whether deferred requests count.
    """
    victims: list[Request] = []
    heads: list[Request] = []
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


def victims_for_pages(head: Request, missing: int, running: Sequence[Request]) -> list[Request]:
    """As few as hold `missing` pages in each group, the last in rank first; none where they hold too few.

    Pages that a victim shares are counted as if they came free: where they do not, the next plan asks again.
    """
    victims: list[Request] = []
    lacks = [missing] * len(head.pages)
    for request in reversed(running):
        if request.rank < head.rank:
            break
        if not outranks(head, request):
            continue
        victims.append(request)
        lacks = [lack - sum(map(bool, pages)) for lack, pages in zip(lacks, request.pages, strict=True)]
        if max(lacks) <= 0:
            return victims
    return []
