"""Refusals: grammars that were refused, so that whoever asks again is told at once."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable

from jaxinfer.constraint import Constraint
from jaxinfer.errors import ParameterError

_MOST = 1024
_SECONDS = 600.0
"""Seconds for which a refusal is remembered."""


class Refusals:
    """Reasons by digests of what was asked, which may be long. clock: seconds. Not safe in several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[float, str | None, str]] = OrderedDict()

    def add(self, constraint: Constraint, error: ParameterError) -> None:
        """Remember why a constraint is refused."""
        param = None if error.param == constraint.param else error.param
        self._kept[_digest(constraint)] = self._clock() + _SECONDS, param, error.message
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)

    def find(self, constraint: Constraint) -> ParameterError | None:
        """Return why a constraint was refused, as an error of the field that it comes from now; None where it was
        not."""
        until, param, message = self._kept.get(_digest(constraint), (0.0, None, ""))
        return ParameterError(param or constraint.param, message) if until > self._clock() else None


def _digest(constraint: Constraint) -> bytes:
    said = (constraint.kind, constraint.value, constraint.whitespace)
    return hashlib.sha256(repr(said).encode("utf-8", "surrogatepass")).digest()
