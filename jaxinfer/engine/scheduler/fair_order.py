"""FairOrder: sequences that wait, shared among tenants by deficit round robin over tokens.

In a round every API key, and every user of it, may spend a quantum of tokens, one sequence a turn; who has spent more
sits out as many rounds, and who begins to wait goes to the end of the round. (Shreedhar and Varghese, "Efficient Fair
Queuing Using Deficit Round-Robin", 1996, with what is owed carried over, since the length of an answer is known when it
has ended.) A sequence is charged when it is admitted, with the prompt tokens that are not cached and the tokens that it
is expected to generate; the charge is corrected when it ends. VTC (Sheng et al. 2024, arXiv:2401.00588) picks the least
charged tenant, which is a round robin whose quantum is one token; it counts while sequences run, which every step of
the engine would pay for.
"""

from collections import OrderedDict

from jaxinfer.engine.scheduler.share import KeyShare, RoundRobin, Share, TenantShare
from jaxinfer.engine.scheduler.share_heap import ShareHeap
from jaxinfer.engine.sequence import Sequence

MAX_IDLE_SHARES = 1024
"""Shares remembered though none of their sequences is under way, for what they were charged; the oldest go first."""


class FairOrder:
    """Each priority has its own rounds; of the sequences that are next in them the one of the lowest rank is next."""

    def __init__(self) -> None:
        self._levels: dict[int, RoundRobin] = {}
        self._every: ShareHeap[RoundRobin] = ShareHeap(deferred=True)
        self._not_deferred: ShareHeap[RoundRobin] = ShareHeap(deferred=False)
        self._shares: dict[Sequence, TenantShare] = {}
        self._idle: OrderedDict[Share, None] = OrderedDict()
        self._turns = 0
        self._next: dict[bool, Sequence | None] = {}

    @property
    def in_rank_order(self) -> bool:
        """True where no priority has sequences of several tenants. Costs a look at every priority."""
        return all(level.in_rank_order for level in self._levels.values())

    def push(self, sequence: Sequence) -> None:
        share = self._shares.get(sequence)
        if share is None:
            share = self._shares[sequence] = self._level(sequence.priority).tenant(sequence.tenant)
            for node in share.path():
                node.open += 1
                self._idle.pop(node, None)
        # After all that wait but the one that has just had a turn.
        share.begin_waiting(self._turns - 1)
        share.queue.push(sequence)
        self._update(share)

    def peek(self, *, deferred: bool = True) -> Sequence | None:
        """The next sequence. deferred: whether a deferred one may be next."""
        if deferred not in self._next:
            level = (self._every if deferred else self._not_deferred).first()
            self._next[deferred] = None if level is None else level.peek(deferred=deferred)
        return self._next[deferred]

    def take(self, sequence: Sequence) -> None:
        """Takes out what `peek` has just returned."""
        share = self._shares[sequence]
        share.queue.take(sequence)
        share.end_waiting()
        self._update(share)

    def defer(self, sequence: Sequence) -> None:
        """Lets others pass the sequence that `peek` has just returned."""
        share = self._shares[sequence]
        share.queue.defer(sequence)
        self._update(share)

    def remove(self, sequence: Sequence) -> None:
        """Takes out a sequence whose status is no longer WAITING."""
        share = self._shares[sequence]
        share.queue.remove(sequence)
        share.end_waiting()
        self._update(share)

    def charge(self, sequence: Sequence, start: int) -> None:
        """Charges a sequence that is admitted with `start` positions computed; what resumes was charged before."""
        if sequence.charged:
            return
        share = self._shares[sequence]
        room = sequence.limit - sequence.num_known
        sequence.charged = sequence.num_known - start + min(room, round(share.expected))
        sequence.charged_from = start
        self._turns += 1
        share.charge(sequence.charged, self._turns)
        self._update(share)

    def settle(self, sequence: Sequence, computed: int) -> None:
        """Corrects the charge of a sequence that ends, of whose positions so many were computed, and lets it go."""
        share = self._shares.pop(sequence)
        if sequence.charged:
            prompt = max(0, min(computed, sequence.prompt_len) - sequence.charged_from)
            share.correct(prompt + sequence.num_outputs - sequence.charged, sequence.num_outputs)
            self._update(share)
        for node in list(share.path()):
            node.open -= 1
            if not node.open:
                self._rest(node)

    def _update(self, share: TenantShare) -> None:
        rounds = share.rounds
        for node in share.path():
            rounds = node.rounds
            rounds.update(node)
        self._every.update(rounds)
        self._not_deferred.update(rounds)
        self._next.clear()

    def _level(self, priority: int) -> RoundRobin:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = RoundRobin(priority)
        return level

    def _rest(self, share: Share) -> None:
        """None of its sequences is under way: it is remembered for as long as it has been charged more than others."""
        if share.charged > share.rounds.start:
            self._idle[share] = None
        else:
            self._forget(share)
        if len(self._idle) > MAX_IDLE_SHARES:
            self._forget(next(iter(self._idle)))

    def _forget(self, share: Share) -> None:
        self._idle.pop(share, None)
        if isinstance(share, KeyShare):
            for user in share.users.parts.values():
                self._idle.pop(user, None)
        rounds = share.rounds
        rounds.forget(share)
        if rounds.owner is None and not rounds.parts:
            del self._levels[rounds.priority]
            self._every.discard(rounds)
            self._not_deferred.discard(rounds)
