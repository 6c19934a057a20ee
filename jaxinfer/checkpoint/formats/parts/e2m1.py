"""Values in e2m1, two in a byte. No jax."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from jaxinfer.checkpoint.formats.parts.packing import Unpacked
from jaxinfer.checkpoint.sources import Derived, Index, Read, Source

BYTES = ("U8",)
"""The type of their tensors."""


def e2m1(packed: Source, depth: int) -> Source:
    """Codes [..., depth], the first of two in the low bits of a byte of `packed`."""
    return _Numbers(Unpacked(packed, len(packed.shape) - 1, depth, 4, (0, 1)))


@dataclass(frozen=True)
class _Numbers(Derived):
    """Whole numbers below 16 as the e2m1 codes that they are."""

    def read(self, index: Index, read: Read) -> np.ndarray:
        return self.source.read(index, read).view(ml_dtypes.float4_e2m1fn)
