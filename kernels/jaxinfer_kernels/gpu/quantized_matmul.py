"""Matmul with weights in int8, int4, e4m3 or e2m1, for GPU."""

import jax
import jax.numpy as jnp

from jaxinfer_kernels.gpu.group_items import group_items, with_room
from jaxinfer_kernels.gpu.matmul_blocks import GpuMatmulBlocks
from jaxinfer_kernels.gpu.tile_product import sides_of
from jaxinfer_kernels.gpu.weight_stream import stream_matmul


def quantized_matmul_gpu(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    out_dtype: jnp.dtype,
    blocks: GpuMatmulBlocks,
) -> jax.Array:
    """The kernel behind `quantized_matmul`; scales and zeros: [N, K // group]."""
    rows, x = x.shape[0], with_room(x, blocks.rows)
    items = group_items(jnp.full(1, rows, jnp.int32), rows, x.shape[0], blocks.rows)
    sides = sides_of(scales[None], None if zeros is None else zeros[None], x, blocks)
    return stream_matmul(x, weight[None], sides, items, rows, out_dtype, blocks)
