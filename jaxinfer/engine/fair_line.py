"""FairLine: requests that wait, shared among tenants by deficit round robin over tokens.

In a round every API key, and every user of it, may spend a quantum of tokens, one request a turn; who has spent more
sits out as many rounds. (Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round-Robin", 1996, with what is
owed carried over, since the length of an answer is known when it has ended.) A request is charged when it is admitted,
with the prompt tokens that are not cached and the tokens that it is expected to generate; the charge is corrected when
it ends. VTC (Sheng et al. 2024, arXiv:2401.00588) picks the least charged tenant, which is a round robin whose quantum
is one token; it counts while requests run, which every step of the engine would pay for.
"""

from collections import OrderedDict

from jaxinfer.engine.request import Request
from jaxinfer.engine.share import Share

MAX_IDLE_SHARES = 1024
"""Shares remembered though none of their requests is under way, for what they were charged; the oldest go first."""


class FairLine:
    """Each priority has its own rounds; of the requests that are next in them the one of the lowest rank is next.

    depth: how many parts of a request's tenant are told apart.
    """

    def __init__(self, depth: int):
        self._depth = depth
        self._levels: dict[int, Share] = {}
        self._idle: OrderedDict[Share, None] = OrderedDict()
        self._turns = 0
        self._next: dict[bool, Request | None] = {}

    @property
    def num_entries(self) -> int:
        """Entries kept, those of requests that are gone included."""
        return sum(share.line.num_entries for share in self._leaves() if share.line is not None)

    @property
    def num_shares(self) -> int:
        """Shares that are remembered."""
        return sum(
            1 + sum(1 + len(part.parts) for part in list(level.parts.values())) for level in self._levels.values()
        )

    @property
    def in_rank_order(self) -> bool:
        """True where no priority has requests of several tenants."""
        return all(_is_one(level) for level in self._levels.values())

    def push(self, request: Request) -> None:
        share = request.share
        if share is None:
            share = request.share = self._share_of(request)
            for node in share.path():
                node.open += 1
                self._idle.pop(node, None)
        share.begin_waiting()
        assert share.line is not None
        share.line.push(request)
        self._changed(share)

    def peek(self, *, aside: bool = True) -> Request | None:
        """The next request. aside: whether one that was set aside may be next."""
        if aside not in self._next:
            heads = (level.head(aside=aside) for level in self._levels.values() if level.backlog)
            self._next[aside] = min((head for head in heads if head is not None), key=_rank, default=None)
        return self._next[aside]

    def take(self, request: Request) -> None:
        """Takes out what `peek` has just returned."""
        assert request.share is not None
        assert request.share.line is not None
        request.share.line.take(request)
        request.share.end_waiting()
        self._changed(request.share)

    def set_aside(self, request: Request) -> None:
        """Lets others pass the request that `peek` has just returned."""
        assert request.share is not None
        assert request.share.line is not None
        request.share.line.set_aside(request)
        self._changed(request.share)

    def remove(self, request: Request) -> None:
        """Takes out a request whose status is no longer WAITING."""
        assert request.share is not None
        assert request.share.line is not None
        request.share.line.remove(request)
        request.share.end_waiting()
        self._changed(request.share)

    def aside(self) -> list[Request]:
        """Requests that were set aside. Safe in any thread."""
        return [request for share in self._leaves() if share.line is not None for request in share.line.aside()]

    def charge(self, request: Request, start: int) -> None:
        """Charges a request that is admitted with `start` positions computed; what resumes was charged before."""
        share = request.share
        assert share is not None
        if request.charged:
            return
        room = request.limit - request.num_known
        request.charged = request.num_known - start + min(room, round(share.expected))
        request.charged_from = start
        self._turns += 1
        share.charge(request.charged, self._turns)
        self._changed(share)

    def settle(self, request: Request, computed: int) -> None:
        """Corrects the charge of a request that ends, of whose positions so many were computed, and lets it go."""
        share = request.share
        assert share is not None
        if request.charged:
            prompt = max(0, min(computed, request.prompt_len) - request.charged_from)
            share.correct(prompt + request.num_outputs - request.charged, request.num_outputs)
            self._changed(share)
        for node in list(share.path()):
            node.open -= 1
            if not node.open:
                self._rest(node)

    def _changed(self, share: Share) -> None:
        share.touch()
        self._next.clear()

    def _share_of(self, request: Request) -> Share:
        share = self._levels.get(request.priority)
        if share is None:
            share = self._levels[request.priority] = Share(request.priority, None, has_line=False)
        names = (*request.tenant, "", "")[: self._depth]
        for i, name in enumerate(names):
            part = share.parts.get(name)
            if part is None:
                part = share.parts[name] = Share(name, share, has_line=i == self._depth - 1)
            share = part
        return share

    def _rest(self, share: Share) -> None:
        """None of its requests is under way: it is remembered for as long as it has been charged more than others."""
        parent = share.parent
        assert parent is not None
        if share.charged > parent.start:
            self._idle[share] = None
        else:
            self._forget(share)
        if len(self._idle) > MAX_IDLE_SHARES:
            self._forget(next(iter(self._idle)))

    def _forget(self, share: Share) -> None:
        parent = share.parent
        assert parent is not None
        self._idle.pop(share, None)
        for part in share.parts.values():
            self._idle.pop(part, None)
        del parent.parts[str(share.name)]
        if parent.parent is None and not parent.parts:
            del self._levels[int(parent.name)]

    def _leaves(self) -> list[Share]:
        # Copies, since statistics are read in other threads.
        shares = list(self._levels.values())
        for _ in range(self._depth):
            shares = [part for share in shares for part in list(share.parts.values())]
        return shares


def _is_one(share: Share) -> bool:
    return len(share.backlog) <= 1 and all(map(_is_one, share.backlog.values()))


def _rank(request: Request) -> tuple[int, ...]:
    return request.rank
