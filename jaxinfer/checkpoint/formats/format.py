"""TensorFormat: how the values of a quantised matrix lie in a checkpoint, and the scheme that holds them on the device.

Imports no jax.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection

from jaxinfer.checkpoint.formats.parts.groups import GroupNumbers
from jaxinfer.checkpoint.formats.parts.stored import Parts
from jaxinfer.checkpoint.sources import Shape
from jaxinfer.quantization.scheme import Scheme


class TensorFormat(ABC):
    """A format of matrices [N, K]. Formats are values: two are one format where they are equal."""

    holds_all_experts = False
    """Whether one tensor holds all experts of a layer, [E, N, K]; such a format has no other matrices."""

    @abstractmethod
    def scheme(self, depth: int) -> Scheme:
        """Return the scheme that holds matrices with `depth` inputs on the device."""

    @abstractmethod
    def parts(self, module: str, shape: Shape) -> Parts:
        """Return the codes, scales and zeros of a module's matrix of this shape, by its tensors' names."""

    def groups(self, module: str, depth: int) -> GroupNumbers | None:
        """Return the group of each column of a matrix, [depth]; None if they are in order and no tensor says so."""
        return None

    def placed(self, found: Collection[str]) -> "TensorFormat":
        """Return the format with the names that its tensors have among all of a checkpoint."""
        return self

    @abstractmethod
    def __str__(self) -> str:
        """Return its name, for people."""
