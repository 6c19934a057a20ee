"""Grouped matmul for TPU: rows sorted by expert, each tile of rows times the weights of its groups."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxinfer_kernels.group_tiles import group_tiles
from jaxinfer_kernels.matmul_blocks import MatmulBlocks
from jaxinfer_kernels.tpu.sides import Sides, sides_of
from jaxinfer_kernels.tpu.tile_product import Cut, Tile, cut_depth, multiply_tile, sums_scratch, vmem_bytes


def grouped_matmul_tpu(
    x: jax.Array,
    weights: jax.Array,
    group_sizes: jax.Array,
    scales: jax.Array | None,
    zeros: jax.Array | None,
    out_dtype: jnp.dtype,
    blocks: MatmulBlocks,
) -> jax.Array:
    """The kernel behind `grouped_matmul`; scales and zeros: [E, N, K // group] or None.

    The grid is (column blocks, items of work), and its second size is known at run time: an empty group costs
    nothing. Items of one group follow each other, so its block of weights arrives once for all its rows.
    """
    (total, depth), columns = x.shape, weights.shape[1]
    given = [array for array in (scales, zeros) if array is not None]
    sides = sides_of(given, weights.dtype)
    cut = cut_depth(depth, depth // sides.groups, blocks.rows, weights.dtype, zeros is not None)
    sums = sums_scratch(blocks.rows, sides.groups, zeros)
    items = group_tiles(group_sizes, total, blocks.rows)
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=4,
        grid=(pl.cdiv(columns, blocks.columns), items.count),
        in_specs=[
            pl.BlockSpec((blocks.rows, depth), lambda column, item, group, tile, *_: (tile[item], 0)),
            pl.BlockSpec((None, blocks.columns, depth), lambda column, item, group, *_: (group[item], column, 0)),
            *sides.specs(blocks.columns, lambda column, item, group, *_: (group[item], column), lead=1),
        ],
        out_specs=pl.BlockSpec(
            (blocks.rows, blocks.columns), lambda column, item, group, tile, *_: (tile[item], column)
        ),
        scratch_shapes=[
            pltpu.VMEM((blocks.rows, blocks.columns), jnp.float32),
            *sides.scratch(blocks.columns, cut.side_shape(depth)),
            *sums,
        ],
    )
    vmem = vmem_bytes(blocks, depth, x.dtype, weights.dtype, out_dtype, sides.groups, cut, bool(sums))
    return pl.pallas_call(
        partial(_kernel, sides=sides, cut=cut),
        out_shape=jax.ShapeDtypeStruct((total, columns), out_dtype),
        grid_spec=spec,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=vmem),
        name="grouped_matmul",
    )(
        items.group,
        items.tile,
        items.low,
        items.high,
        x,
        pltpu.with_memory_space_constraint(weights, pltpu.HBM),
        *sides.lay(given),
    )


def _kernel(
    group: Any, tile: Any, low: Any, high: Any, x: Any, weight: Any, *rest: Any, sides: Sides, cut: Cut
) -> None:
    narrow, (out, acc, *wide) = rest[: sides.count], rest[sides.count :]
    item = pl.program_id(1)
    first = (item == 0) | (tile[item] != tile[jnp.maximum(item - 1, 0)])

    @pl.when(first)
    def _() -> None:
        out[...] = jnp.zeros_like(out)

    @pl.when(high[item] > low[item])
    def _() -> None:
        sides.load(narrow, wide[: sides.count])
        multiply_tile(Tile(x, weight, *wide), acc, cut)
        row = jax.lax.broadcasted_iota(jnp.int32, acc.shape, 0)
        mine = (row >= low[item]) & (row < high[item])
        # Selected, never multiplied by zero: rows of no group may hold NaN.
        out[...] = jnp.where(mine, acc[...], out[...].astype(jnp.float32)).astype(out.dtype)
