"""Scheme: how the values of one weight are held in few bits. Nothing here imports jax."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from jaxinfer.errors import ModelError

CodeType = Literal["int8", "int4", "e4m3", "e2m1"]
ScaleType = Literal["float32", "e8m0", "e4m3"]
Activations = Literal["none", "int8", "e4m3"]
Part = Literal["codes", "factors", "order", "scales", "zeros"]

CODE_BITS: dict[CodeType, int] = {"int8": 8, "int4": 4, "e4m3": 8, "e2m1": 4}
SCALE_BITS: dict[ScaleType, int] = {"float32": 32, "e8m0": 8, "e4m3": 8}
Axis = TypeVar("Axis")

_ZERO_BITS = _ORDER_BITS = _FACTOR_BITS = 32


@dataclass(frozen=True)
class Scheme:
    """A weight [..., N, K] is (code - zero) * scale, with a scale, and a zero if there are any, for each row's `group`
    values of K.

    group: None: one scale for a whole row. activations `none`: x is multiplied as it is. `int8`, `e4m3`: each token's
    x is rounded to that type with a scale of its own, its largest absolute value over the type's largest; codes are
    then of the same type, rows have one scale each and no zeros, and products are of codes. scales: their type; e8m0
    has the powers of two alone. ordered: columns are sorted by group, and `order` says which of K each is, for all rows
    of a matrix alike; x is gathered in that order before it is multiplied. factors: a row's values have a float32
    factor, too, with which its sum is multiplied.
    """

    codes: CodeType
    group: int | None = None
    zeros: bool = False
    activations: Activations = "none"
    scales: ScaleType = "float32"
    ordered: bool = False
    factors: bool = False

    def __post_init__(self) -> None:
        if self.group is not None and self.group < 1:
            raise ValueError(f"group must be at least 1, not {self.group}")
        plain = not (self.group or self.zeros or self.factors)
        if self.activations != "none" and not (plain and self.activations == self.codes):
            raise ValueError(f"activations in {self.activations} need codes of that type, a scale a row and no zeros")
        if self.zeros and self.codes == "e2m1":
            raise ValueError("codes in e2m1 have a sign and no zeros")
        if self.ordered and self.group is None:
            raise ValueError("columns that all share a scale need no order")

    @property
    def parts(self) -> tuple[Part, ...]:
        """The arrays that a weight consists of, by name, as flax sorts a module's leaves."""
        zeros: tuple[Part, ...] = ("zeros",) if self.zeros else ()
        order: tuple[Part, ...] = ("order",) if self.ordered else ()
        factors: tuple[Part, ...] = ("factors",) if self.factors else ()
        return ("codes", *factors, *order, "scales", *zeros)

    def shape(self, part: Part, shape: Sequence[int], lead: int = 0) -> tuple[int, ...]:
        """Return the shape of a part of a weight of this shape, whose first `lead` axes are of matrices and the others
        but the last of rows. Raises ModelError if the last axis is no multiple of the group.

        Only codes keep several axes of rows. If scales did, and the last filled no tile, XLA for TPU would make experts
        the minor axis, and copy all scales in every step (compiled for a v5e and a v6e: Qwen3-30B-A3B in int4).
        """
        if part == "codes":
            return tuple(shape)
        if part == "order":
            return (*shape[:lead], shape[-1])
        return (*shape[:lead], _product(shape[lead:-1]), 1 if part == "factors" else self.groups(shape[-1]))

    def axes(self, part: Part, axes: Sequence[Axis], lead: int = 0) -> tuple[Axis | None, ...]:
        """Return the axes of a part of a weight whose values have these axes; None for an axis along which each device
        has the whole part, as of an order: a part of the sorted columns may be any of x."""
        if part == "codes":
            return tuple(axes)
        if part == "order":
            return (*axes[:lead], None)
        rows, *merged, columns = axes[lead:]
        assert not any(merged)
        return (*axes[:lead], rows, columns if self.group is not None and part != "factors" else None)

    def groups(self, depth: int) -> int:
        """Scales of a row of `depth` values. Raises ModelError where `depth` is no multiple of the group."""
        if depth % (self.group or depth):
            raise ModelError(f"weights with {depth:,} inputs cannot be quantised in groups of {self.group}")
        return depth // (self.group or depth)

    def bits(self, shape: Sequence[int]) -> int:
        """Return the bits of a matrix of this shape, packed as a GPU or TPU packs it."""
        rows, depth = _product(shape[:-1]), shape[-1]
        of_group = SCALE_BITS[self.scales] + (_ZERO_BITS if self.zeros else 0)
        of_row = self.groups(depth) * of_group + (_FACTOR_BITS if self.factors else 0)
        order = depth * _ORDER_BITS if self.ordered else 0
        return rows * (depth * CODE_BITS[self.codes] + of_row) + order

    def __str__(self) -> str:
        per = "row" if self.group is None else f"{self.group}"
        zeros = ", zeros" if self.zeros else ""
        activations = "" if self.activations == "none" else f", activations {self.activations}"
        scales = "" if self.scales == "float32" else f", scales {self.scales}"
        order = ", ordered" if self.ordered else ""
        factors = ", factors" if self.factors else ""
        return f"{self.codes} per {per}{zeros}{scales}{factors}{activations}{order}"


class LayerSchemes(NamedTuple):
    """The schemes of a layer's matrices, by the names that blocks call them; None: held as they are."""

    qkv: Scheme | None = None
    out: Scheme | None = None
    gate_up: Scheme | None = None
    up: Scheme | None = None
    down: Scheme | None = None
    experts_gate_up: Scheme | None = None
    experts_down: Scheme | None = None
    shared_gate_up: Scheme | None = None
    shared_down: Scheme | None = None


class TableSchemes(NamedTuple):
    """The schemes of the embedding, which is the head too where that is tied, and of a head of its own."""

    embed: Scheme | None = None
    table: Scheme | None = None


def _product(lengths: Sequence[int]) -> int:
    count = 1
    for length in lengths:
        count *= length
    return count
