"""Share: what a tenant has been charged. RoundRobin: shares that take turns."""

from collections.abc import Iterator

from jaxinfer.engine.scheduler.rank_order import RankOrder
from jaxinfer.engine.scheduler.share_heap import Place, ShareHeap
from jaxinfer.engine.sequence import Sequence

QUANTUM = 256
"""Tokens of a round. Shares that differ by less are equal, and the one that waits longest for its turn has it."""

_FIRST_GUESS = 128.0
"""Tokens that the first sequence of a share is expected to generate."""
_NEWEST = 1 / 8
"""Weight of the newest sequence in what is expected of the next."""


class Share:
    """An API key's sequences of one priority, or those of one user of a key.

    rounds: where it takes turns with others. line: the order of its sequences.
    charged: tokens; round r is open to shares that were charged less than (r + 1) · QUANTUM.
    turn: who waits for longest has the lowest: the number of its last turn, or of one when it began to wait.
    joined: True where it has had no turn since it began to wait.
    waiting, open: its sequences that wait, and those that have not ended.
    """

    __slots__ = ("charged", "joined", "line", "name", "open", "rounds", "turn", "waiting")

    def __init__(self, name: str, rounds: "RoundRobin", line: "RankOrder | RoundRobin"):
        self.name = name
        self.rounds = rounds
        self.line = line
        self.charged = 0
        self.turn = 0
        self.joined = True
        self.waiting = 0
        self.open = 0

    def path(self) -> Iterator["Share"]:
        """This share and the one that it is a part of."""
        share: Share | None = self
        while share is not None:
            yield share
            share = share.rounds.owner

    def place(self, *, deferred: bool) -> Place | None:
        """Its place in its rounds, or None where it has no sequence that could be next."""
        sequence = self.line.peek(deferred=deferred) if self.waiting else None
        if sequence is None:
            return None
        # What resumes was charged when it was admitted first, and waits for no round.
        if sequence.charged:
            return (0, 0, 0, sequence.rank)
        return (1, self.charged // QUANTUM, self.turn, sequence.rank)


class TenantShare(Share):
    """The smallest share: its sequences wait in a queue of their own.

    expected: tokens that its next sequence is expected to generate.
    """

    __slots__ = ("expected", "queue")

    def __init__(self, name: str, rounds: "RoundRobin"):
        self.queue = RankOrder()
        super().__init__(name, rounds, self.queue)
        self.expected = _FIRST_GUESS

    def begin_waiting(self, turn: int) -> None:
        """One more sequence waits; shares that had their last turn after `turn` come after it."""
        for share in self.path():
            if not share.waiting:
                share.rounds.join(share, turn)
            share.waiting += 1

    def end_waiting(self) -> None:
        """One sequence less waits."""
        for share in self.path():
            share.waiting -= 1
            if not share.waiting:
                share.rounds.num_waiting -= 1

    def charge(self, tokens: int, turn: int) -> None:
        """A sequence of its own has its turn."""
        for share in self.path():
            share.rounds.charge(share, tokens, turn)

    def correct(self, tokens: int, outputs: int) -> None:
        """A sequence of its own has ended: what it was charged too little, and how many tokens it generated."""
        self.expected += _NEWEST * (outputs - self.expected)
        for share in self.path():
            share.charged += tokens


class KeyShare(Share):
    """An API key's share, of which each of its users has a share."""

    __slots__ = ("users",)

    def __init__(self, name: str, rounds: "RoundRobin"):
        self.users = RoundRobin(rounds.priority, self)
        super().__init__(name, rounds, self.users)


class RoundRobin:
    """Shares of one priority, or of one API key, that take turns.

    A share that begins to wait goes to the end of the round, as in deficit round robin, and rounds go on though shares
    begin to wait all the time: so everybody is served, however many new names come.

    owner: the share that they are parts of; None: they are all of a priority.
    start: what a share that begins to wait was charged at least. It grows with every turn by an equal part of the
        tokens (the virtual time of weighted fair queueing), up to what the next share was charged.
    num_waiting: shares that have sequences waiting.
    """

    def __init__(self, priority: int, owner: Share | None = None):
        self.priority = priority
        self.owner = owner
        self.parts: dict[str, KeyShare | TenantShare] = {}
        self.start = 0
        self.num_waiting = 0
        self._every: ShareHeap[Share] = ShareHeap(deferred=True)
        self._not_deferred: ShareHeap[Share] = ShareHeap(deferred=False)

    @property
    def in_rank_order(self) -> bool:
        """True where all sequences that wait are of one tenant."""
        first = self._every.first()
        return first is None or (self.num_waiting <= 1 and first.line.in_rank_order)

    def peek(self, *, deferred: bool) -> Sequence | None:
        """The next sequence. deferred: whether a deferred one may be next."""
        share = (self._every if deferred else self._not_deferred).first()
        return None if share is None else share.line.peek(deferred=deferred)

    def place(self, *, deferred: bool) -> Place | None:
        """Its place among other priorities: that of its next sequence's rank."""
        sequence = self.peek(deferred=deferred)
        return None if sequence is None else (0, 0, 0, sequence.rank)

    def tenant(self, names: tuple[str, ...]) -> TenantShare:
        """The share of a tenant: of its API key, or of its API key and user."""
        name, *rest = names
        share = self.parts.get(name)
        if share is None:
            share = self.parts[name] = KeyShare(name, self) if rest else TenantShare(name, self)
        return share.users.tenant(tuple(rest)) if isinstance(share, KeyShare) else share

    def join(self, share: Share, turn: int) -> None:
        """A share begins to wait; those that had their last turn after `turn` come after it."""
        first = self._every.first()
        if first is not None:
            # A share that had turns and has more to wait is never far behind: new ones come right after it. One that
            # has had none holds the start up for a round at most, lest new ones keep it where it is for ever.
            self.start = min(self.start, first.charged + (QUANTUM if first.joined else 0))
        share.charged = max(share.charged, self.start)  # who had nothing to wait gains nothing by it
        share.turn = turn
        share.joined = True
        self.num_waiting += 1

    def charge(self, share: Share, tokens: int, turn: int) -> None:
        """A share has its turn, the `turn`-th."""
        sharers = self.num_waiting + (not share.waiting)
        self.start = max(self.start - (-tokens // sharers), share.charged)
        share.charged += tokens
        share.turn = turn
        share.joined = False

    def update(self, share: Share) -> None:
        """Must be called when the place of a share may have changed."""
        self._every.update(share)
        self._not_deferred.update(share)

    def forget(self, share: Share) -> None:
        """Lets go of a share that has no sequence."""
        del self.parts[share.name]
        self._every.discard(share)
        self._not_deferred.discard(share)
