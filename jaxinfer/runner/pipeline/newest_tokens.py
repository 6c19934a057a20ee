"""NewestTokens: what was drawn, on its way from the last stage of a pipeline back to the first."""

from collections import deque
from typing import NamedTuple

import jax


class _Drawn(NamedTuple):
    step: int
    newest: jax.Array


class NewestTokens:
    """What the first stage is handed of all slots after each of the last steps that drew: newest tokens, int32 [slots],
    or where rows draft what `handed_back` gives.

    A step reads them as they were after the last one by which a row of its own has drawn: so it waits for no other.
    Later ones would have the same of those rows, which are not planned again before. nothing: what the first stage is
    handed before any has drawn.
    """

    def __init__(self, nothing: jax.Array, stages: int):
        self._nothing = nothing
        # As many steps are in flight as there are stages and one; what is older has been drawn when it is read.
        self._drawn: deque[_Drawn] = deque(maxlen=stages + 2)

    def add(self, step: int, newest: jax.Array) -> None:
        """What a step has drawn is under way. Another engine over the same devices counts its steps from 0."""
        if self._drawn and step <= self._drawn[-1].step:
            self._drawn.clear()
        self._drawn.append(_Drawn(step, newest))

    def after(self, step: int) -> jax.Array:
        """With all that was drawn up to a step."""
        return next((drawn.newest for drawn in self._drawn if drawn.step >= step), self._nothing)

    def clear(self) -> None:
        """Drops all."""
        self._drawn.clear()
