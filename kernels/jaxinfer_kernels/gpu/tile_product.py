"""The product of one tile with weights that may be int8, int4, e4m3 or e2m1, inside a GPU kernel."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from jaxinfer_kernels.dequantise import E2M1, widened_scales
from jaxinfer_kernels.gpu.matmul_blocks import GpuMatmulBlocks

plgpu: Any = mosaic_gpu
"""Untyped: types are checked against a JAX whose Mosaic GPU has another interface."""

_LOADED = {
    jnp.dtype(jnp.int8): (plgpu.Layout.WGMMA_UPCAST_2X, plgpu.Layout.WGMMA),
    jnp.dtype(jnp.float8_e4m3fn): (plgpu.Layout.WGMMA_UPCAST_2X, plgpu.Layout.WGMMA),
    jnp.dtype(jnp.int4): (plgpu.Layout.WGMMA_UPCAST_4X, plgpu.Layout.WGMMA),
    E2M1: (plgpu.Layout.WGMMA_UPCAST_4X, plgpu.Layout.WGMMA),
}
"""Register layouts of codes by type: as they are loaded, four bytes a thread, and as wgmma needs them."""


_CODES_FROM_E2M1 = 2**14
"""Divisor in `_f16_of_e2m1`."""


class Sides(NamedTuple):
    """Scales, [E, N, G], and zeros, [E, N, G] float32, and sums of x over each group or part of K, [G or splits, rows]
    float32. None where absent.
    """

    scales: Any = None
    zeros: Any = None
    sums: Any = None

    def at(self, group: Any, columns: Any, rows: Any) -> "Sides":
        """Return the sides of a tile: scales and zeros [columns, G], sums [G, rows]."""
        if self.scales is None:
            return self
        scales = self.scales.at[group, columns]
        if self.zeros is None:
            return Sides(scales)
        return Sides(scales, self.zeros.at[group, columns], self.sums.at[:, rows])


def sides_of(scales: jax.Array | None, zeros: jax.Array | None, x: jax.Array, blocks: GpuMatmulBlocks) -> Sides:
    """`Sides` of scales and zeros [E, N, G], for x [rows, K].

    Zeros are taken off the sum of a group, as zero * (sum of x over the group).
    """
    if scales is None:
        return Sides()
    if zeros is None:
        return Sides(scales)
    sums = x.astype(jnp.float32).reshape(x.shape[0], max(scales.shape[2], blocks.splits), -1).sum(axis=2).T
    return Sides(scales, zeros.astype(jnp.float32), sums)


class Stages(NamedTuple):
    """Tiles in shared memory, [stages, rows, depth] of x and [stages, columns, depth] of weights.

    arrived, free: barriers, one a stage: it is filled; all warpgroups have read it.
    """

    x: Any
    weights: Any
    arrived: Any
    free: Any


class Tile(NamedTuple):
    """Tile of one warpgroup's product. sides: scales and zeros. columns: its part of the tile's. depth: all of K."""

    stages: Stages
    sides: Sides
    columns: Any
    blocks: GpuMatmulBlocks
    depth: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.columns.size, self.blocks.rows

    @property
    def summed(self) -> Any:
        """Type in which the matrix unit accumulates: products of int8 are exact in int32."""
        return jnp.int32 if self.stages.x.dtype == jnp.int8 else jnp.float32

    @property
    def promotes(self) -> bool:
        """Sums leave the matrix unit after every stage. True for e4m3, of whose sums it keeps about 14 bits."""
        return self.stages.x.dtype == jnp.float8_e4m3fn

    @property
    def group(self) -> int:
        """Values of K that are summed up by the matrix unit: of one scale, of one part, and as far as it is exact."""
        if self.promotes:
            return self.blocks.depth
        groups = 1 if self.sides.scales is None else self.sides.scales.shape[1]
        return min(self.depth // groups, self.depth // self.blocks.splits)


def tile_product(tile: Tile, first: jax.Array, steps: int, split: jax.Array) -> jax.Array:
    """weights @ x.T of `steps` stages from the one numbered `first`, scaled: [columns, rows] float32.

    Codes enter wgmma as they are, exact in bfloat16, or in x's type if that is theirs; sums of a group are scaled.
    Hopper sums up products of e4m3 with about 14 bits (DeepSeek-V3, arXiv:2412.19437, section 3.3.2): their sums are
    added to float32 after every stage, and scaled at the end.
    """
    stages = max(tile.group // tile.blocks.depth, 1)
    turns = steps // stages
    make = _of_stages if tile.group >= tile.blocks.depth else _of_one_stage

    def turn(index: jax.Array | int, total: jax.Array | None) -> jax.Array:
        return make(tile, first + index * stages, stages, split * turns + index, total)

    if turns == 1 and not tile.promotes:
        return turn(0, None)
    zeros = plgpu.layout_cast(jnp.zeros(tile.shape, jnp.float32), plgpu.Layout.WGMMA)
    total = lax.fori_loop(0, turns, turn, zeros)
    return _added(None, total, _loaded_sides(tile, split)) if tile.promotes else total


def _of_stages(tile: Tile, first: jax.Array, stages: int, group: jax.Array, total: jax.Array | None) -> jax.Array:
    """A group of whole stages, added to the total."""
    sides = Sides() if tile.promotes else _loaded_sides(tile, group)

    def multiply(acc: Any) -> jax.Array:
        def step(index: jax.Array, _: None) -> None:
            slot = lax.rem(first + index, tile.blocks.stages)
            plgpu.barrier_wait(tile.stages.arrived.at[slot])
            plgpu.wgmma(acc, _weights(tile, slot), tile.stages.x.at[slot].transpose((1, 0)))
            plgpu.wgmma_wait(0)
            plgpu.barrier_arrive(tile.stages.free.at[slot])

        lax.fori_loop(0, stages, step, None)
        return acc[...]

    return _added(total, pl.run_scoped(multiply, plgpu.ACC(tile.shape, tile.summed)), sides)


def _of_one_stage(tile: Tile, first: jax.Array, _: int, index: jax.Array, total: jax.Array | None) -> jax.Array:
    """All groups of one stage, added to the total."""
    slot, groups = lax.rem(first, tile.blocks.stages), tile.blocks.depth // tile.group
    plgpu.barrier_wait(tile.stages.arrived.at[slot])
    weights = _weights(tile, slot)
    for group in range(groups):
        sides, low = _loaded_sides(tile, index * groups + group), group * tile.group

        def multiply(acc: Any, low: int = low) -> jax.Array:
            x = tile.stages.x.at[slot, :, pl.ds(low, tile.group)]
            plgpu.wgmma(acc, weights[:, low : low + tile.group], x.transpose((1, 0)))
            return acc[...]

        total = _added(total, pl.run_scoped(multiply, plgpu.ACC(tile.shape, jnp.float32)), sides)
    plgpu.barrier_arrive(tile.stages.free.at[slot])
    assert total is not None
    return total


def _weights(tile: Tile, slot: jax.Array) -> Any:
    """The left side of wgmma: a ref to weights in its type, or registers that hold codes in that type."""
    weights = tile.stages.weights.at[slot, tile.columns]
    if weights.dtype == tile.stages.x.dtype:
        return weights
    loaded = plgpu.load(weights)
    for layout in _LOADED[weights.dtype]:
        loaded = plgpu.layout_cast(loaded, layout)
    if weights.dtype == E2M1:
        loaded = _f16_of_e2m1(loaded).astype(jnp.float32)
    if loaded.dtype == jnp.float8_e4m3fn:
        loaded = loaded.astype(jnp.float16).astype(jnp.float32)  # float16 is all that Hopper converts e4m3 to
    return loaded.astype(tile.stages.x.dtype)


def _f16_of_e2m1(codes: jax.Array) -> jax.Array:
    """The codes over 2**14, in float16: sign, exponent and mantissa are moved to where float16 has them, which Hopper
    widens without loss; 0.5, of exponent 0, becomes a subnormal value of float16 too."""
    bits = lax.bitcast_convert_type(codes, jnp.int4).astype(jnp.int8).astype(jnp.int16)  # the sign in all upper bits
    return lax.bitcast_convert_type((bits << 9) & jnp.int16(-0x7200), jnp.float16)


def _loaded_sides(tile: Tile, group: jax.Array) -> Sides:
    """Scales and zeros [columns] and sums [rows] of one group; asked for early, as they come from HBM."""
    if tile.sides.scales is None:
        return Sides()
    index = group if tile.sides.scales.shape[1] > 1 else 0
    of_column = partial(plgpu.load, layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)
    of_row = partial(plgpu.load, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
    scales = widened_scales(of_column(tile.sides.scales.at[:, index]))
    if tile.stages.weights.dtype == E2M1:
        scales *= _CODES_FROM_E2M1
    if tile.sides.zeros is None:
        return Sides(scales)
    return Sides(scales, of_column(tile.sides.zeros.at[:, index]), of_row(tile.sides.sums.at[group]))


def _added(total: jax.Array | None, product: jax.Array, sides: Sides) -> jax.Array:
    product = product.astype(jnp.float32)
    if sides.zeros is not None:
        product -= lax.broadcast_in_dim(sides.zeros, product.shape, (0,)) * lax.broadcast_in_dim(
            sides.sums, product.shape, (1,)
        )
    if sides.scales is not None:
        product *= lax.broadcast_in_dim(sides.scales, product.shape, (0,))
    return product if total is None else total + product
