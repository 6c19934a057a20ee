"""Grouped matmul for TPU: rows sorted by expert, each tile of rows times the weights of its groups."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxinfer_kernels.group_tiles import group_tiles
from jaxinfer_kernels.matmul_blocks import MatmulBlocks
from jaxinfer_kernels.stack import Weights, layer_index, whole
from jaxinfer_kernels.tpu.sides import Sides, first, sides_of
from jaxinfer_kernels.tpu.tile_product import Cut, Tile, cut_depth, multiply_tile, sums_scratch, vmem_bytes

_ITEM_ARRAYS = 4


def grouped_matmul_tpu(
    x: jax.Array,
    weights: Weights,
    group_sizes: jax.Array,
    scales: Weights | None,
    zeros: Weights | None,
    out_dtype: jnp.dtype,
    blocks: MatmulBlocks,
) -> jax.Array:
    """The kernel behind `grouped_matmul`; scales and zeros: [E, N, K // group] or None.

    The grid is (column blocks, items of work), and its second size is known at run time: an empty group costs
    nothing. Items of one group follow each other, so its block of weights arrives once for all its rows. The number of
    a layer in a stack arrives with the items.
    """
    (total, depth), columns = x.shape, weights.shape[1]
    given = [array for array in (scales, zeros) if array is not None]
    sides = sides_of(given, weights.dtype)
    cut = cut_depth(depth, depth // sides.groups, blocks.rows, weights.dtype, zeros is not None)
    sums = sums_scratch(blocks.rows, sides.groups, zeros)
    items = group_tiles(group_sizes, total, blocks.rows)
    layer = layer_index(weights)
    lead = len(layer) + 1
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=_ITEM_ARRAYS + len(layer),
        grid=(pl.cdiv(columns, blocks.columns), items.count),
        in_specs=[
            pl.BlockSpec((blocks.rows, depth), lambda column, item, group, tile, *_: (tile[item], 0)),
            pl.BlockSpec((*[None] * lead, blocks.columns, depth), lambda column, *at: (*_group_place(*at), column, 0)),
            *sides.specs(blocks.columns, lambda column, *at: (*_group_place(*at), column), lead=lead),
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
        partial(_kernel, stacked=len(layer), sides=sides, cut=cut),
        out_shape=jax.ShapeDtypeStruct((total, columns), out_dtype),
        grid_spec=spec,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=vmem),
        name="grouped_matmul",
    )(
        items.group,
        items.tile,
        items.low,
        items.high,
        *layer,
        x,
        pltpu.with_memory_space_constraint(whole(weights), pltpu.HBM),
        *map(whole, sides.lay(given)),
    )


def _group_place(item: Any, group: Any, tile: Any, low: Any, high: Any, *layer: Any) -> tuple[Any, ...]:
    """Return the index of an item's weights: the layer in a stack, if there is one, and the group."""
    del tile, low, high
    return *first(layer), group[item]


def _kernel(*refs: Any, stacked: int, sides: Sides, cut: Cut) -> None:
    _, tile, low, high = refs[:_ITEM_ARRAYS]
    x, weight, *rest = refs[_ITEM_ARRAYS + stacked :]
    narrow, (out, acc, *wide) = rest[: sides.count], rest[sides.count :]
    item = pl.program_id(1)
    begins = (item == 0) | (tile[item] != tile[jnp.maximum(item - 1, 0)])

    @pl.when(begins)
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
