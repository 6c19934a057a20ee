"""Arrays in messages of MessagePack: their type and their bytes, of one axis."""

from typing import Any

import numpy as np

DTYPES = ("<i4", "<i8")


def plain(value: Any) -> Any:
    """Convert a NumPy value to one an encoder takes: an array to its type and bytes, a number to Python's. Raises
    NotImplementedError for anything else."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, np.ascontiguousarray(value).data
    if isinstance(value, np.generic):  # a number that was read from an array, and stands for Python's
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} has no place in a message")


def array(kind: type, value: Any) -> np.ndarray:
    """The array of a message: read-only, over a copy of the message's bytes that nobody can write. Raises
    ValueError."""
    dtype, data = value
    if dtype not in DTYPES:
        raise ValueError(f"an array of {' or '.join(DTYPES)} is expected, not of {dtype!r}")
    return np.frombuffer(data, dtype)
