"""Grouped matmul for GPU: rows sorted by expert, each item of rows times the weights of its group."""

import jax
import jax.numpy as jnp

from jaxinfer_kernels.gpu.group_items import group_items, with_room
from jaxinfer_kernels.gpu.matmul_blocks import GpuMatmulBlocks
from jaxinfer_kernels.gpu.tile_product import sides_of
from jaxinfer_kernels.gpu.weight_stream import stream_matmul


def grouped_matmul_gpu(
    x: jax.Array,
    weights: jax.Array,
    group_sizes: jax.Array,
    scales: jax.Array | None,
    zeros: jax.Array | None,
    out_dtype: jnp.dtype,
    blocks: GpuMatmulBlocks,
) -> jax.Array:
    """The kernel behind `grouped_matmul`; scales and zeros: [E, N, K // group] or None."""
    rows, x = x.shape[0], with_room(x, blocks.rows)
    items = group_items(group_sizes, rows, x.shape[0], blocks.rows)
    return stream_matmul(x, weights, sides_of(scales, zeros, x, blocks), items, rows, out_dtype, blocks)
