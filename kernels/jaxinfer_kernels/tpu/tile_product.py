"""The product of one tile with weights that may be int8, int4, e4m3 or e2m1, inside a TPU kernel."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxinfer_kernels.dequantise import E2M1, e5m2_of_e2m1, multiply
from jaxinfer_kernels.matmul_blocks import LANES, MatmulBlocks, value_bytes
from jaxinfer_kernels.stack import Weights

_CHUNKS = (1024, 512, 256, 128)
_SHORT_CHUNKS = (512, 256, 128)
"""Chunks of K if widening takes more registers: for weights that are scaled early, and for e4m3 on v6e."""

_LATE_COLUMNS, _EARLY_COLUMNS = 256, 512
"""Columns that are multiplied at once where scales belong to groups: sums of late scaling that fit the registers, and
scaled weights of early scaling that v6e and v7x need not spill by far. By the schedules, late scaling of so many takes
up to a quarter less time than of 1024, early scaling of fewer takes longer."""

_VMEM_SPARE = 4 << 20


class Tile(NamedTuple):
    """Refs of one tile in VMEM: x [rows, K], weight [columns, K], and scales and zeros as `Sides.load` leaves them:
    of e2m1 scales are those of `e5m2_of_e2m1`.

    sums: of x, as `sums_scratch` has them, filled by `multiply_tile`.
    """

    x: Any
    weight: Any
    scales: Any = None
    zeros: Any = None
    sums: Any = None


class Cut(NamedTuple):
    """Steps in which a tile's product walks K. chunk: values of K widened at once; a remainder comes last. group:
    values of K that share a scale.

    early: scale weights before the product; else the product is scaled, once a group.
    """

    chunk: int
    group: int
    early: bool

    def side_shape(self, depth: int) -> tuple[int, int]:
        """Chunks, and groups of a whole chunk, at least one."""
        return -(-depth // self.chunk), max(self.chunk // self.group, 1)


def cut_depth(depth: int, group: int, rows: int, weight: jnp.dtype, zeros: bool = False) -> Cut:
    """The walk over `depth` for tiles of `rows` rows and weights of that type, by the cost of scaling.

    Late scaling multiplies rows * columns values a group, and codes enter the product exact, as they are; early
    scaling multiplies columns * group values and rounds them to x's type. Late is the cheaper one while rows <= group.
    zeros: whether they come with scales. Raises ValueError for groups that do not fall on the lanes.
    """
    early = rows > group
    sizes = _CHUNKS
    if early or weight == jnp.float8_e4m3fn:
        sizes = _SHORT_CHUNKS
    if group == depth:
        return Cut(next((chunk for chunk in sizes if depth % chunk == 0), depth), group, False)
    if (LANES % group and group % LANES) or depth < LANES or (zeros and depth % LANES):
        raise ValueError(
            f"scales must have groups that divide {LANES} or are multiples of it, and K must be at least {LANES}, with "
            f"zeros a multiple of it, for mosaic_tpu; K is {depth} with groups of {group}"
        )
    if depth % LANES:
        return Cut(next(chunk for chunk in sizes if chunk <= depth), group, early)
    return Cut(next((chunk for chunk in sizes if depth % chunk == 0 and chunk % group == 0), group), group, early)


def sums_scratch(rows: int, groups: int, zeros: Weights | None) -> list[Any]:
    """Return scratch memory for the sums of x over groups, LANES groups at a time; none unless several have zeros.

    Zeros come off a tile as one product, of these sums and zeros * scales. Subtracted group by group, from its product
    or its weights, they would need more registers than there are.
    """
    if zeros is None or groups == 1:
        return []
    return [pltpu.VMEM((pl.cdiv(groups, LANES), rows, LANES), jnp.float32)]


def multiply_tile(tile: Tile, acc: Any, cut: Cut) -> None:
    """Writes x @ weight.T, [rows, columns] float32, scaled, to the ref `acc`."""
    depth = tile.x.shape[1]
    acc[...] = jnp.zeros_like(acc)
    if tile.sums is not None:
        tile.sums[...] = jnp.zeros_like(tile.sums)

    def step(index: jax.Array | int, carry: None) -> None:
        start = index * cut.chunk if isinstance(index, int) else pl.multiple_of(index * cut.chunk, cut.chunk)
        _add_product(tile, acc, index, pl.ds(start, cut.chunk), cut)
        if tile.sums is not None:
            _add_sums(tile, index, pl.ds(start, cut.chunk), cut)
        return carry

    if depth == cut.chunk:
        step(0, None)
    else:
        whole = depth // cut.chunk
        jax.lax.fori_loop(0, whole, step, None)
        if rest := depth % cut.chunk:
            _add_product(tile, acc, whole, pl.ds(whole * cut.chunk, rest), cut)
    if tile.scales is not None and cut.group == depth:
        if tile.zeros is not None:
            acc[...] -= jnp.sum(tile.x[...].astype(jnp.float32), axis=1, keepdims=True) * tile.zeros[0]
        acc[...] *= tile.scales[0]
    if tile.sums is not None:
        _take_zeros_off(tile, acc)


def _add_sums(tile: Tile, index: jax.Array | int, where: Any, cut: Cut) -> None:
    """Adds a chunk's values of x to the sums of their groups, by the MXU, as a product with ones."""
    groups = tile.scales.shape[1]
    together = max(LANES // groups, 1)
    piece, first = index // together, index % together * groups
    lane = jax.lax.broadcasted_iota(jnp.int32, (LANES, cut.chunk), 0)
    of_value = first + jax.lax.broadcasted_iota(jnp.int32, (LANES, cut.chunk), 1) // cut.group
    tile.sums[piece] += multiply(tile.x[:, where], (lane == of_value).astype(jnp.float32).astype(tile.x.dtype))


def _take_zeros_off(tile: Tile, acc: Any) -> None:
    """Takes sums @ (zeros * scales) off `acc`, as many groups at a time as there are lanes."""
    chunks, groups, _ = tile.scales.shape
    together = max(LANES // groups, 1)
    for piece in range(tile.sums.shape[0]):
        some = range(piece * together, min((piece + 1) * together, chunks))
        sides = jnp.concatenate([tile.scales[chunk] * tile.zeros[chunk] for chunk in some], axis=0)
        for low in range(0, acc.shape[0], LANES):
            sums = tile.sums[piece, low : low + LANES, : sides.shape[0]]
            acc[low : low + LANES] -= jax.lax.dot(sums, sides, precision=jax.lax.Precision.HIGHEST)


def _add_product(tile: Tile, acc: Any, index: jax.Array | int, where: Any, cut: Cut) -> None:
    """Adds the product of a chunk to `acc`; scaled, where scales belong to groups."""
    x = tile.x[:, where]
    if tile.scales is None or cut.group == tile.x.shape[1]:
        acc[...] += multiply(x, _codes(tile, slice(None), where, x.dtype))
        return
    groups = slice(x.shape[1] // cut.group)
    if cut.early:
        acc[...] += _early(tile, x, tile.scales[index, groups], where, cut.group)
        return
    for some in _slices(acc.shape[1], _LATE_COLUMNS):
        acc[:, some] += _late(x, _codes(tile, some, where, x.dtype), tile.scales[index, groups, some], cut.group)


def _slices(columns: int, most: int) -> list[slice]:
    return [slice(low, min(low + most, columns)) for low in range(0, columns, most)]


def _codes(tile: Tile, columns: slice, where: Any, dtype: Any) -> jax.Array:
    """Weights of some columns and a part of K as they are; those of e2m1 in `dtype`."""
    codes = tile.weight[columns, where]
    return e5m2_of_e2m1(codes).astype(dtype) if codes.dtype == E2M1 else codes


def _early(tile: Tile, x: jax.Array, scales: jax.Array, where: Any, group: int) -> jax.Array:
    """x @ (weight * scales).T, [rows, columns] float32; scales [groups, columns]."""
    products = []
    for some in _slices(scales.shape[1], _EARLY_COLUMNS):
        weight = _codes(tile, some, where, jnp.float32).astype(jnp.float32) * _along_lanes(scales[:, some], group)
        products.append(multiply(x, weight.astype(x.dtype)))
    return jnp.concatenate(products, axis=1)


def _late(x: jax.Array, weight: jax.Array, scales: jax.Array, group: int) -> jax.Array:
    """x @ (weight * scales).T, [rows, columns] float32; scales [groups, columns]."""
    total = None
    rows, most = x.shape[0], max(group, LANES)
    for first in range(0, x.shape[1], most):
        piece = x[:, first : first + most]
        product = multiply(_stacked(piece, group), weight[:, first : first + most])
        for step in range(piece.shape[1] // group):
            index = first // group + step
            term = product[step * rows : (step + 1) * rows] * scales[index : index + 1]
            total = term if total is None else total + term
    assert total is not None
    return total


def _stacked(x: jax.Array, group: int) -> jax.Array:
    """x [rows, lanes] once for each group of its lanes, zero outside of it: [lanes // group * rows, lanes].

    The MXU takes weights 128 lanes at a time; groups below that share one pass, in rows of their own.
    """
    if group == x.shape[1]:
        return x
    of_group = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) // group
    return jnp.concatenate([jnp.where(of_group == i, x, 0) for i in range(x.shape[1] // group)], axis=0)


def _along_lanes(values: jax.Array, group: int) -> jax.Array:
    """[groups, columns] float32 to [columns, groups * group], each value `group` times.

    By the MXU, as a product with ones: broadcasts from one lane to many cost several times as much. Three bfloat16
    parts of 8 bits each make the values exact.
    """
    lanes = values.shape[0] * group
    parts = []
    for _ in range(3):
        bits = jax.lax.bitcast_convert_type(values, jnp.int32) & ~0xFFFF
        parts.append(jax.lax.bitcast_convert_type(bits, jnp.float32))
        values = values - parts[-1]
    ones = jax.lax.broadcasted_iota(jnp.int32, (values.shape[0], lanes), 1) // group
    ones = ones == jax.lax.broadcasted_iota(jnp.int32, (values.shape[0], lanes), 0)
    left = jnp.concatenate(parts, axis=0).astype(jnp.bfloat16)
    right = jnp.concatenate([ones.astype(jnp.float32)] * 3, axis=0).astype(jnp.bfloat16)
    return jax.lax.dot_general(left, right, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def vmem_bytes(
    blocks: MatmulBlocks, depth: int, x: Any, weight: Any, out: Any, groups: int, cut: Cut, summed: bool = False
) -> int:
    """Bytes of VMEM to ask for: two of each block, the sum, products of a chunk, its widened weights, and some room.

    x, weight, out: types. summed: with `sums_scratch`, and what its product with zeros takes in three bfloat16 parts.
    """
    rows, columns = -(-blocks.rows // 16) * 16, -(-blocks.columns // LANES) * LANES
    sides = max(groups, 8) * 2 + max(groups, 8 * cut.side_shape(depth)[0])
    block = rows * (depth * value_bytes(x) + columns * value_bytes(out))
    block += columns * (depth * value_bytes(weight) + sides * 4)
    if summed:
        block += (rows * -(-groups // LANES) // 2 + columns * 2) * LANES * 4
    widened = columns * cut.chunk * (value_bytes(x) + (12 if cut.early else 4))
    return int(2 * block + (2 * rows + LANES) * columns * 4 + widened) + _VMEM_SPARE
