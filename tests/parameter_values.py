"""Values of sampling parameters, for tests of everything that derives from their table."""

from jaxinfer.sampling import parameters

NUMBERS = [name for name, own in parameters().items() if own.kind is not bool]


def another_value(name: str) -> int | float | bool:
    """One that a scalar parameter may have, other than its default and exact in float32 if it is a float."""
    own = parameters()[name]
    if own.kind is bool:
        return not own.default
    return int(own.low) + 2 if own.kind is int else own.low + 0.625 * (own.high - own.low)


def values_out_of_range(name: str) -> list[float]:
    """One below a number's range and one above it."""
    own = parameters()[name]
    return [own.low - (1 if own.minus_one is None else 2), own.high + 1]
