"""Codes of few bits, packed into integers. No jax."""

from dataclasses import dataclass

import numpy as np

from jaxinfer.checkpoint.sources import Index, Lengthened, Read, Tensor

WORDS = ("I32",)
"""The type of tensors whose numbers of 32 bits hold several codes."""


@dataclass(frozen=True)
class Unpacked(Lengthened):
    """An axis of whole numbers, each of which holds several codes, made an axis of codes, int8.

    order: the place of each code of a word, from its lowest bits: code j is word >> (bits * order[j]), whose lowest
    `bits` bits count. less: what is taken off. plus: what is added before, within the bits of a code.
    """

    bits: int
    order: tuple[int, ...]
    less: int = 0
    plus: int = 0

    def read(self, index: Index, read: Read) -> np.ndarray:
        first, last, _ = index[self.axis].indices(self.length)
        count = len(self.order)
        begin, end = first // count, -(-last // count)
        words = self.source.read((*index[: self.axis], slice(begin, end), *index[self.axis + 1 :]), read)
        words = words.view(f"u{words.itemsize}")
        codes = np.stack([self._codes(words, place) for place in self.order], axis=self.axis + 1)
        flat = codes.reshape(*words.shape[: self.axis], -1, *words.shape[self.axis + 1 :])
        cut = slice(first - begin * count, last - begin * count)
        return flat[(slice(None),) * self.axis + (cut,)]

    def _codes(self, words: np.ndarray, place: int) -> np.ndarray:
        """Return the codes at one place of every word."""
        codes = (words >> np.asarray(self.bits * place, words.dtype)).astype(np.uint8)
        codes = (codes + np.uint8(self.plus)) & np.uint8(2**self.bits - 1)
        return (codes - np.uint8(self.less)).view(np.int8)


def unpacked(tensor: Tensor, axis: int, bits: int, length: int, **differences: int) -> Unpacked:
    """Codes that lie in a word in their order, the first in its lowest bits. tensor: of int32."""
    return Unpacked(tensor, axis, length, bits, tuple(range(32 // bits)), **differences)


def words(length: int, bits: int) -> int:
    """Numbers of 32 bits that hold so many codes."""
    return -(-length * bits // 32)
