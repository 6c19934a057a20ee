"""The search for n-grams that drafts come from, written out in plain Python."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxinfer.speculation import Speculation


class Found(NamedTuple):
    """drafts: [] for none. predicted: whether a prediction gave them. shared: tokens that their place shares with the
    row's last ones."""

    drafts: list[int]
    predicted: bool = False
    shared: int = 0


def searched(tokens: Sequence[int], speculation: Speculation) -> Found:
    """What followed the place that shares most with the end of `tokens`, the latest of several."""
    places, best = _best_places(tokens, tokens, speculation)
    place = max(places, default=-1)
    if place < 0:
        return Found([])
    seen = list(tokens)
    for step in range(speculation.tokens):
        seen.append(seen[place + 1 + step])  # a text that repeats itself goes on
    return Found(seen[len(tokens) :], shared=best)


def searched_with(tokens: Sequence[int], prediction: Sequence[int], aligned: int, speculation: Speculation) -> Found:
    """The same in a prediction, too, whose places go before; of several the nearest to `aligned`, the first of two."""
    own, (places, best) = searched(tokens, speculation), _best_places(prediction, tokens, speculation)
    if not places or best < own.shared:
        return own
    place = min(places, key=lambda place: (abs(place - aligned), place))
    return Found(list(prediction[place + 1 :][: speculation.tokens]), True, best)


def _best_places(text: Sequence[int], tokens: Sequence[int], speculation: Speculation) -> tuple[list[int], int]:
    """Places in `text`, but for its last, at which most of the last `tokens` stand, and how many those are."""
    shared = [_shared(text[: at + 1], tokens, speculation.longest) for at in range(len(text) - 1)]
    best = max(shared, default=0)
    return [at for at, count in enumerate(shared) if count == best >= speculation.shortest], best


def _shared(one: Sequence[int], other: Sequence[int], longest: int) -> int:
    """How many of their last tokens are the same, at most `longest`."""
    shared = 0
    while shared < min(longest, len(one), len(other)) and one[-1 - shared] == other[-1 - shared]:
        shared += 1
    return shared
