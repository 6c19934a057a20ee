"""Parameter: what a scalar field of SamplingParams declares, once for every place that takes sampling parameters."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxinfer.errors import ParameterError

_NUMBERS = (int, float)
_EXACT = 2**53
"""Integers below it are exact as doubles."""


class Column(NamedTuple):
    """A parameter on the device. dtype: of its array. neutral: what a slot without a request has."""

    dtype: str
    neutral: int | float


@dataclass(frozen=True)
class Parameter:
    """A scalar sampling parameter. Its name is the dataclass field's, in HTTP, gRPC, YAML files and flags alike.

    kind: int, float or bool. default: of a request that does not give it. low, high: the range, both included unless
    above_low. optional: None is allowed. minus_one: what -1 stands for, where it is not a number of its own.
    neutral: that of its column on the device; None: it has none.
    generation_key: its key in a model's generation_config.json; empty where that declares none.
    flag: help of its flag on the commands that generate; empty where they have none.
    """

    kind: type[int] | type[float] | type[bool]
    default: int | float | bool | None
    low: float = 0
    high: float = 0
    above_low: bool = False
    optional: bool = False
    minus_one: int | None = None
    neutral: int | float | None = None
    generation_key: str = ""
    flag: str = ""

    @property
    def column(self) -> Column | None:
        """None where the device does not need the parameter."""
        return None if self.neutral is None else Column("int32" if self.kind is int else "float32", self.neutral)

    @property
    def fits_double(self) -> bool:
        """True where a double holds every value."""
        return self.kind is not int or self.high < _EXACT

    def allows(self, value: float) -> bool:
        """True for a number in the range."""
        # NaN fails the comparison, too; `isfinite` would fail on a huge integer.
        return self.low <= value <= self.high and not (self.above_low and value == self.low)

    def check(self, name: str, value: Any, *, of: str = "") -> None:
        """Raises ParameterError for a wrong type or a number out of range. of: which of several values, for errors."""
        if self.kind is bool or (self.optional and value is None):
            return
        if isinstance(value, bool) or not isinstance(value, int if self.kind is int else _NUMBERS):
            noun = "an integer" if self.kind is int else "a number"
            raise ParameterError(name, f"{of}must be {noun}, not {type(value).__name__}")
        if not self.allows(value):
            bound = f"above {self.low} and at most {self.high}" if self.above_low else f"{self.low} to {self.high}"
            raise ParameterError(name, f"{of}{value} is out of range; {bound} is allowed")

    def from_double(self, value: float) -> int | float | bool:
        """The value that a double stands for; one that is not whole stays as it is, and `check` refuses it."""
        if self.kind is bool:
            return bool(value)
        return int(value) if self.kind is int and value.is_integer() else value


def integer(default: int | None, low: int, high: int, **more: Any) -> Any:
    """A dataclass field with a Parameter. more: fields of Parameter, as for the next two."""
    return _field(Parameter(int, default, low, high, **more))


def number(default: float, low: float, high: float, **more: Any) -> Any:
    """Declare a float parameter, as `integer` declares an int."""
    return _field(Parameter(float, default, low, high, **more))


def boolean(default: bool, **more: Any) -> Any:
    """Declare a parameter that is true or false."""
    return _field(Parameter(bool, default, **more))


def _field(parameter: Parameter) -> Any:
    return field(default=parameter.default, metadata={Parameter: parameter})
