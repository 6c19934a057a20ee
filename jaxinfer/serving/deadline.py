"""The longest time that a request may wait for a slot."""

import math
from collections.abc import Mapping

_TIMEOUTS = ("X-Stainless-Read-Timeout", "X-Stainless-Timeout")
"""Headers in which OpenAI's clients tell for how many seconds they wait: that for Python, and that for Node."""


def client_timeout(headers: Mapping[str, str]) -> float | None:
    """Return the seconds after which a client gives up, as its headers say; None if they don't."""
    told = (_seconds(headers.get(name, "")) for name in _TIMEOUTS)
    return min((seconds for seconds in told if seconds > 0), default=None)


def max_wait(timeout: float | None, default: float) -> float | None:
    """Return the seconds that a request may wait: the server's default, or less if its client gives up sooner.

    timeout: the client's. default: 0 means any time. Returns None if there is no bound.
    """
    bounds = [seconds for seconds in (default or None, timeout) if seconds is not None]
    return min(bounds, default=None)


def _seconds(text: str) -> float:
    """Return a positive number of seconds; 0 if the text is none, as clients without a timeout may send."""
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if 0 < seconds < math.inf else 0.0
