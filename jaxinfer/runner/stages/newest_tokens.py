"""NewestTokens: what was drawn, on its way from the last stage of a pipeline back to the first."""

from collections import deque
from typing import NamedTuple

import jax


class _Drawn(NamedTuple):
    step: int
    newest: jax.Array


class NewestTokens:
    """Newest tokens of all slots, int32 [slots], after each of the last steps that drew, for the first stage; if rows
    draft, the arrays of `handed_back`.

    A step reads them as they were after the last step that drew for one of its rows, so it waits for no other. Later
    ones have equal values for these rows, which are not planned again before. nothing: the array that the first stage
    gets before any step has drawn; None where one stage is all.
    """

    def __init__(self, nothing: jax.Array | None, stages: int):
        self._nothing = nothing
        # As many steps are in flight as there are stages and one; what is older has been drawn when it is read.
        self._drawn: deque[_Drawn] = deque(maxlen=stages + 2)

    def add(self, step: int, newest: jax.Array) -> None:
        """Add what a step draws, which may still be under way. Another engine over the same devices counts its steps
        from 0: its first step drops all earlier ones."""
        if self._drawn and step <= self._drawn[-1].step:
            self._drawn.clear()
        self._drawn.append(_Drawn(step, newest))

    def after(self, step: int) -> jax.Array | None:
        """Return the earliest array that contains everything drawn up to a step."""
        return next((drawn.newest for drawn in self._drawn if drawn.step >= step), self._nothing)

    def clear(self) -> None:
        """Drops all."""
        self._drawn.clear()
