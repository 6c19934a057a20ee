"""Weight-only int8/int4 matmul for TPU."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxinfer_kernels.matmul_blocks import MatmulBlocks
from jaxinfer_kernels.tpu.tile_product import Cut, Tile, cut_depth, multiply_tile, vmem_bytes


def quantized_matmul_tpu(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    out_dtype: jnp.dtype,
    blocks: MatmulBlocks,
) -> jax.Array:
    """The kernel behind `quantized_matmul`; scales and zeros: [N, K // group].

    The grid is (column blocks, row blocks): a block of weights arrives once and stays for all rows.
    """
    (total, depth), columns, groups = x.shape, weight.shape[0], scales.shape[1]
    cut = cut_depth(depth, depth // groups, blocks.rows)
    side = [side.T.astype(jnp.float32) for side in (scales, zeros) if side is not None]
    side_spec = pl.BlockSpec((groups, blocks.columns), lambda column, row: (0, column))
    vmem = vmem_bytes(blocks, depth, x.dtype, weight.dtype, out_dtype, groups, cut)
    return pl.pallas_call(
        partial(_kernel, cut=cut, with_zeros=zeros is not None),
        out_shape=jax.ShapeDtypeStruct((total, columns), out_dtype),
        grid=(pl.cdiv(columns, blocks.columns), pl.cdiv(total, blocks.rows)),
        in_specs=[
            pl.BlockSpec((blocks.rows, depth), lambda column, row: (row, 0)),
            pl.BlockSpec((blocks.columns, depth), lambda column, row: (column, 0)),
            *[side_spec for _ in side],
        ],
        out_specs=pl.BlockSpec((blocks.rows, blocks.columns), lambda column, row: (row, column)),
        scratch_shapes=[pltpu.VMEM((blocks.rows, blocks.columns), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=vmem),
        name="quantized_matmul",
    )(x, weight, *side)


def _kernel(x: Any, weight: Any, scales: Any, *rest: Any, cut: Cut, with_zeros: bool) -> None:
    zeros = rest[0] if with_zeros else None
    out, acc = rest[-2:]
    multiply_tile(Tile(x, weight, scales, zeros), acc, cut)
    out[...] = acc[...].astype(out.dtype)
