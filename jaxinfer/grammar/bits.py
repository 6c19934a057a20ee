"""Masks: a bit a token, packed as the engine has them."""

from collections.abc import Collection

import numpy as np

from jaxinfer.engine.step.shapes import WORD_BITS


def bits_of(ids: Collection[int], words: int) -> np.ndarray:
    """A mask of these ids, int32 [words]; of those that it has no bit for, none."""
    bits = np.zeros(words * WORD_BITS, np.uint8)
    bits[[id for id in ids if id < len(bits)]] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
