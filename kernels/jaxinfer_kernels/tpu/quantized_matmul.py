"""Matmul with weights in int8, int4, e4m3 or e2m1, for TPU."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxinfer_kernels.matmul_blocks import MatmulBlocks
from jaxinfer_kernels.stack import Weights, layer_index, whole
from jaxinfer_kernels.tpu.sides import Sides, first, sides_of
from jaxinfer_kernels.tpu.tile_product import Cut, Tile, cut_depth, multiply_tile, sums_scratch, vmem_bytes


def quantized_matmul_tpu(
    x: jax.Array,
    weight: Weights,
    scales: Weights,
    zeros: Weights | None,
    out_dtype: jnp.dtype,
    blocks: MatmulBlocks,
) -> jax.Array:
    """The kernel behind `quantized_matmul`; scales and zeros: [N, K // group].

    The grid is (column blocks, row blocks): a block of weights arrives once and stays for all rows. The number of a
    layer in a stack arrives first.
    """
    (total, depth), columns = x.shape, weight.shape[0]
    given = [scales] if zeros is None else [scales, zeros]
    sides = sides_of(given, weight.dtype)
    cut = cut_depth(depth, depth // sides.groups, blocks.rows, weight.dtype, zeros is not None)
    sums = sums_scratch(blocks.rows, sides.groups, zeros)
    layer = layer_index(weight)
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(layer),
        grid=(pl.cdiv(columns, blocks.columns), pl.cdiv(total, blocks.rows)),
        in_specs=[
            pl.BlockSpec((blocks.rows, depth), lambda column, row, *_: (row, 0)),
            pl.BlockSpec(
                (*[None] * len(layer), blocks.columns, depth), lambda column, row, *at: (*first(at), column, 0)
            ),
            *sides.specs(blocks.columns, lambda column, row, *at: (*first(at), column), lead=len(layer)),
        ],
        out_specs=pl.BlockSpec((blocks.rows, blocks.columns), lambda column, row, *_: (row, column)),
        scratch_shapes=[
            pltpu.VMEM((blocks.rows, blocks.columns), jnp.float32),
            *sides.scratch(blocks.columns, cut.side_shape(depth)),
            *sums,
        ],
    )
    vmem = vmem_bytes(blocks, depth, x.dtype, weight.dtype, out_dtype, sides.groups, cut, bool(sums))
    return pl.pallas_call(
        partial(_kernel, stacked=len(layer), sides=sides, cut=cut),
        out_shape=jax.ShapeDtypeStruct((total, columns), out_dtype),
        grid_spec=spec,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=vmem),
        name="quantized_matmul",
    )(*layer, x, pltpu.with_memory_space_constraint(whole(weight), pltpu.HBM), *map(whole, sides.lay(given)))


def _kernel(*refs: Any, stacked: int, sides: Sides, cut: Cut) -> None:
    x, weight, *rest = refs[stacked:]
    narrow, (out, acc, *wide) = rest[: sides.count], rest[sides.count :]
    sides.load(narrow, wide[: sides.count])
    multiply_tile(Tile(x, weight, *wide), acc, cut)
    out[...] = acc[...].astype(out.dtype)
