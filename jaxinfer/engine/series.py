"""Fields of records of statistics, which declare their series of /metrics."""

from dataclasses import field
from typing import Any, Literal, NamedTuple


class Series(NamedTuple):
    """A series of /metrics, or those of it that show one field.

    name: of a counter without `_total`, which Prometheus adds. labels: names of its own labels. values: of the first of
    them; if one is left, it is the place of each number of a tuple.
    """

    kind: Literal["counter", "gauge"]
    name: str
    text: str
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    def at(self, *values: str) -> "Series":
        """Return the part of the series whose next labels have these values."""
        return self._replace(values=(*self.values, *values))


def shown(*series: Series, default: Any = 0) -> Any:
    """Return a field of a record that these series show. default: () for a tuple."""
    return field(default=default, metadata={"series": series})


def counter(name: str, text: str, *labels: str, default: Any = 0) -> Any:
    """A field that is a total since the start."""
    return shown(Series("counter", name, text, labels), default=default)


def gauge(name: str, text: str, *labels: str, default: Any = 0) -> Any:
    """A field that is a number of now."""
    return shown(Series("gauge", name, text, labels), default=default)
