"""Share: what a tenant has been charged, and its requests that wait."""

import heapq
from collections.abc import Iterator

from jaxinfer.engine.rank_line import RankLine
from jaxinfer.engine.request import Request

QUANTUM = 256
"""Tokens of a round. Shares that differ by less are equal, and the one that waits longest for its turn has it."""

_FIRST_GUESS = 128.0
"""Tokens that the first request of a share is expected to generate."""
_NEWEST = 1 / 8
"""Weight of the newest request in what is expected of the next."""

Place = tuple[int, int, int, tuple[int, ...]]
_Entry = tuple[Place, int, int, "Share"]


class Share:
    """All requests of a priority, or one API key's of them, or one user's of a key; the last of these has a `line`.

    charged: tokens, on the scale of its parent's rounds: round r is open to parts that were charged less than
        (r + 1) · QUANTUM.
    start: what its part that was served last had been charged by then, where parts begin that had nothing to wait.
    turn: the number of its last turn; 0: it had none.
    waiting, open: its requests that wait, and those that have not ended.
    """

    __slots__ = (
        "_heap",
        "_touched",
        "_version",
        "backlog",
        "charged",
        "expected",
        "line",
        "name",
        "open",
        "parent",
        "parts",
        "start",
        "turn",
        "waiting",
    )

    def __init__(self, name: str | int, parent: "Share | None", *, has_line: bool):
        self.name = name
        self.parent = parent
        self.parts: dict[str, Share] = {}
        self.backlog: dict[str | int, Share] = {}
        self.line = RankLine() if has_line else None
        self.charged = 0 if parent is None else parent.start
        self.start = 0
        self.turn = 0
        self.waiting = 0
        self.open = 0
        self.expected = _FIRST_GUESS
        self._heap: list[_Entry] = []
        self._touched: set[Share] = set()
        self._version = 0

    def path(self) -> Iterator["Share"]:
        """This share and those that it is a part of, but for the priority's."""
        share = self
        while share.parent is not None:
            yield share
            share = share.parent

    def head(self, *, aside: bool) -> Request | None:
        """Its next request. aside: whether one that was set aside may be next."""
        if self.line is not None:
            return self.line.peek(aside=aside)
        return self._first() if aside else self._first_not_aside()

    def touch(self) -> None:
        """Must be called when its next request, or its place among others, may have changed."""
        for share in self.path():
            assert share.parent is not None
            share.parent._touched.add(share)

    def _first(self) -> Request | None:
        # Places change seldom, and requests are asked for in every step: so parts lie in a heap, beside entries that
        # are out of date and skipped when they surface.
        for part in self._touched:
            self._queue(part)
        self._touched.clear()
        heap = self._heap
        while heap and not _is_current(heap[0]):
            heapq.heappop(heap)
        if len(heap) > 2 * len(self.backlog) + 64:
            self._heap = [entry for entry in heap if _is_current(entry)]
            heapq.heapify(self._heap)
        return self._heap[0][-1].head(aside=True) if self._heap else None

    def _queue(self, part: "Share") -> None:
        part._version += 1
        request = part.head(aside=True) if part.waiting else None
        if request is not None:
            heapq.heappush(self._heap, (part._place(request), id(part), part._version, part))

    def _first_not_aside(self) -> Request | None:
        found = ((part, part.head(aside=False)) for part in self.backlog.values())
        places = [(part._place(request), request) for part, request in found if request is not None]
        return min(places, key=_place_of)[1] if places else None

    def _place(self, request: Request) -> Place:
        # What resumes was charged when it was admitted first, and waits for no round.
        if request.charged:
            return (0, 0, 0, request.rank)
        return (1, self.charged // QUANTUM, self.turn, request.rank)

    def begin_waiting(self) -> None:
        """One more request waits."""
        for share in self.path():
            parent = share.parent
            assert parent is not None
            if not share.waiting:
                # Who had nothing to wait gains nothing by it.
                share.charged = max(share.charged, parent.start)
                parent.backlog[share.name] = share
            share.waiting += 1

    def end_waiting(self) -> None:
        """One request less waits."""
        for share in self.path():
            assert share.parent is not None
            share.waiting -= 1
            if not share.waiting:
                del share.parent.backlog[share.name]

    def charge(self, tokens: int, turn: int) -> None:
        """A request of its own has its turn."""
        for share in self.path():
            assert share.parent is not None
            share.parent.start = max(share.parent.start, share.charged)
            share.charged += tokens
            share.turn = turn

    def correct(self, tokens: int, outputs: int) -> None:
        """A request of its own has ended: what it was charged too little, and how many tokens it generated."""
        self.expected += _NEWEST * (outputs - self.expected)
        for share in self.path():
            share.charged += tokens


def _is_current(entry: _Entry) -> bool:
    _, _, version, share = entry
    return version == share._version and share.waiting > 0


def _place_of(found: tuple[Place, Request]) -> Place:
    return found[0]
