"""Count an array's bytes in a TPU's memory, in which two of its axes are padded to whole tiles.

XLA's default layout for a TPU, according to libtpu: the minor axis comes in tiles of 128, the one before it in tiles of
up to 8 numbers, or of 8 for each that a word of 32 bits holds if these fill whole tiles; the two axes are those that
take the least memory. `tests/parallel/test_tpu_tiles.py` compares it with libtpu's own answers. Imports no jax.
"""

import itertools
import math
from collections.abc import Sequence

_LANES, _SUBLANES = 128, 8
_WORD_BITS = 32
_LARGEST_LINE = 1024
"""Numbers of the tile of an array of one axis, at most."""


def tiled_bytes(shape: Sequence[int], bits: int, order: Sequence[int] | None = None) -> int:
    """Bytes of an array of numbers of so many bits.

    order: its axes, the minor one last, where they lie so; by default as they take least, which is how they lie.
    """
    packed = max(_WORD_BITS // bits, 1)
    if len(shape) < 2:
        count = math.prod(shape)
        tile = min(_LARGEST_LINE, max(_LANES * packed, _power_above(count)))
        return _up(count, tile) * bits // 8
    if 0 in shape:
        return 0
    ends = itertools.permutations(range(len(shape)), 2) if order is None else [(order[-2], order[-1])]
    return min(_numbers(shape, second, minor, packed) for second, minor in ends) * bits // 8


def _numbers(shape: Sequence[int], second: int, minor: int, packed: int) -> int:
    others = math.prod(shape) // (shape[second] * shape[minor])
    return others * _rows(shape[second], packed) * _up(shape[minor], _LANES)


def _rows(count: int, packed: int) -> int:
    if packed > 2 and count % (_SUBLANES * packed) == 0:
        return count
    return _up(count, max(packed, min(_SUBLANES, _power_above(count))))


def _up(count: int, tile: int) -> int:
    return -(-count // tile) * tile


def _power_above(count: int) -> int:
    """The least power of two that is no smaller."""
    return 1 << max(count - 1, 0).bit_length()
