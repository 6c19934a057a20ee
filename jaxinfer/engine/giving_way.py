"""Which running requests give way to waiting ones that outrank them."""

from collections.abc import Sequence

from jaxinfer.engine.request import Request
from jaxinfer.engine.waiting import WaitingQueue


def victims_for_slots(waiting: WaitingQueue, running: Sequence[Request], *, aside: bool) -> list[Request]:
    """One for each waiting request that outranks it: the last of `running`, which is in rank's order, first.

    aside: whether requests that were set aside count.
    """
    heads: list[Request] = []
    while len(heads) < len(running):
        head = waiting.peek(aside=aside)
        if head is None or head.rank > running[-1 - len(heads)].rank:
            break
        waiting.take(head)
        heads.append(head)
    for head in heads:
        waiting.push(head)
    return list(reversed(running[len(running) - len(heads) :]))


def victims_for_pages(head: Request, missing: int, running: Sequence[Request]) -> list[Request]:
    """As few as hold `missing` pages in each group, the last in rank first; none where they hold too few.

    Pages that a victim shares are counted as if they came free: where they do not, the next plan asks again.
    """
    victims: list[Request] = []
    lacks = [missing] * len(head.pages)
    for request in reversed(running):
        if request.rank < head.rank:
            break
        victims.append(request)
        lacks = [lack - sum(map(bool, pages)) for lack, pages in zip(lacks, request.pages, strict=True)]
        if max(lacks) <= 0:
            return victims
    return []
