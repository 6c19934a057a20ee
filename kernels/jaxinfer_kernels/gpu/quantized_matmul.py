"""Weight-only int8/int4 matmul for GPU."""

import jax
import jax.numpy as jnp

from jaxinfer_kernels.gpu.group_items import group_items, with_room
from jaxinfer_kernels.gpu.matmul_blocks import GpuMatmulBlocks
from jaxinfer_kernels.gpu.tile_product import Sides
from jaxinfer_kernels.gpu.weight_stream import stream_matmul


def quantized_matmul_gpu(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    out_dtype: jnp.dtype,
    blocks: GpuMatmulBlocks,
) -> jax.Array:
    """The kernel behind `quantized_matmul`; scales and zeros: [N, K // group].

    Zeros are taken off the sum of a group, as zero * (sum of x over the group).
    """
    rows, x = x.shape[0], with_room(x, blocks.rows)
    items = group_items(jnp.full(1, rows, jnp.int32), rows, x.shape[0], blocks.rows)
    sides = Sides(scales.astype(jnp.float32)[None])
    if zeros is not None:
        sums = x.astype(jnp.float32).reshape(x.shape[0], max(scales.shape[1], blocks.splits), -1).sum(axis=2).T
        sides = Sides(*sides[:1], zeros.astype(jnp.float32)[None], sums)
    return stream_matmul(x, weight[None], sides, items, rows, out_dtype, blocks)
