"""Matmul of rows sorted by group, each with its group's weights: the experts of a mixture."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer_kernels.cpu.matmul import native_product
from jaxinfer_kernels.cpu.packed import BLOCK, has_depth, unpacked
from jaxinfer_kernels.dequantise import (
    PLAIN,
    check_activations,
    is_quantised,
    is_rounded,
    multiply,
    multiply_scaled,
    sides_with_groups,
)
from jaxinfer_kernels.gpu.matmul_blocks import GpuMatmulBlocks, check_gpu_matmul, gpu_matmul_blocks
from jaxinfer_kernels.group_tiles import group_tiles
from jaxinfer_kernels.matmul_backends import check_backend
from jaxinfer_kernels.matmul_blocks import MatmulBlocks, arriving_bytes, matmul_blocks
from jaxinfer_kernels.stack import Weights, sliced
from jaxinfer_kernels.zeros import zeros_after


def grouped_matmul(
    x: jax.Array,
    weights: Weights,
    group_sizes: jax.Array,
    *,
    scales: Weights | None = None,
    zeros: Weights | None = None,
    out_dtype: jnp.dtype | None = None,
    backend: str = "xla",
    block_sizes: MatmulBlocks | GpuMatmulBlocks | None = None,
) -> jax.Array:
    """Row t of the result is weights[g] @ x[t], where g is the group that row t belongs to; sums in float32.

    Quantised weights count as (weights - zeros) * scales.

    x: [T, K], as `quantized_matmul` takes it, rows sorted by group. weights: [E, N, K], bfloat16, float16, float32,
    int8, int4, float8_e4m3fn or float4_e2m1fn; or uint8 [E, N, K // 2], packed as of `quantized_matmul`. group_sizes:
    [E] int32, rows of each group, 0 allowed; rows beyond their sum belong to no group and their result is 0, whatever x
    holds there; what the sum exceeds T by is cut off. scales: for quantised weights alone, [E, N] or
    [E, N, K // group], float32, bfloat16, float8_e4m3fn or float8_e8m0fnu. zeros: as scales, float32 or bfloat16, or
    None for symmetric weights, as those of e2m1 are; they need not be whole. Weights, scales and zeros may be layers of
    stacks (`StackLayer`), all of one index. out_dtype: by default x's, float32 for codes. block_sizes: MatmulBlocks for
    `mosaic_tpu`, GpuMatmulBlocks for `mosaic_gpu`, by default by the shapes. Returns [T, N].

    `xla` loops over pairs (row tile, group); it holds one expert's dequantised weights and a tile of products, never
    [E, T, N]. `mosaic_tpu` walks the same pairs as a grid; see `quantized_matmul` for where scales are applied.
    `mosaic_gpu` (on Hopper; x in bfloat16 or codes, plain weights in bfloat16) walks over items of one group, which
    begin near its rows. `native` (on a CPU; x and weights as `native_product` takes them) reads the weights of groups
    that have rows where they lie.
    Raises ValueError for an unknown backend or one that this jax does not have, types and shapes other than those
    above, scales that are missing or not wanted, zeros without them, block_sizes with `xla` or of another backend, on
    `mosaic_tpu` for groups that neither divide 128 nor are multiples of it, and on `mosaic_gpu` as `quantized_matmul`
    does.

    The pairs are those of MegaBlocks' block-sparse products (arXiv:2211.15841), for one dimension of blocks.

    Cost: 2 T N K FLOPs of use, and up to (T + E' * rows of a block) N K of them spent, where E' groups hold rows;
    E' N K weights read once, x again for every block of columns, T N out. Per weight of two bytes there are T / E'
    FLOPs. A chip whose matmul rate is r FLOPs for each byte it reads (v5e 240, v5p 166, v6e 560, v7x 313) is bound by
    reading weights below T = r E', by the MXU above. With 8 experts T = 8 and 256 wait for memory on all chips, and
    T = 4096 for the MXU on all but v6e; with 128 or 256 experts all three wait for memory everywhere.
    """
    out_dtype = jnp.dtype(out_dtype or (jnp.float32 if is_rounded(x) else x.dtype))
    _check(x, weights, group_sizes, scales, zeros, backend, block_sizes)
    if scales is not None:
        scales, zeros = sides_with_groups(weights, scales, zeros)
    if backend == "native":
        return native_product(x, weights, group_sizes, scales=scales, zeros=zeros, out_dtype=out_dtype)
    if backend == "xla":
        matrices, its_scales, its_zeros = sliced((weights, scales, zeros))
        return _loop(x, matrices, group_sizes, its_scales, its_zeros, out_dtype)
    weights, scales, zeros = unpacked(weights, scales, zeros)
    if backend == "mosaic_tpu":
        return _on_tpu(x, weights, group_sizes, scales, zeros, out_dtype, block_sizes)
    matrices, its_scales, its_zeros = sliced((weights, scales, zeros))
    return _on_gpu(x, matrices, group_sizes, its_scales, its_zeros, out_dtype, block_sizes)


def _on_tpu(
    x: jax.Array,
    weights: Weights,
    group_sizes: jax.Array,
    scales: Weights | None,
    zeros: Weights | None,
    out_dtype: jnp.dtype,
    sizes: Any,
) -> jax.Array:
    from jaxinfer_kernels.tpu.grouped_matmul import grouped_matmul_tpu

    (rows, depth), (experts, columns, _) = x.shape, weights.shape
    item = arriving_bytes(weights.dtype, depth if scales is None else depth // scales.shape[2])
    blocks = sizes or matmul_blocks(rows, columns, depth, x.dtype.itemsize, item, experts)
    return grouped_matmul_tpu(x, weights, group_sizes, scales, zeros, out_dtype, blocks)


def _on_gpu(
    x: jax.Array,
    weights: jax.Array,
    group_sizes: jax.Array,
    scales: jax.Array | None,
    zeros: jax.Array | None,
    out_dtype: jnp.dtype,
    sizes: Any,
) -> jax.Array:
    (rows, depth), (experts, columns, _) = x.shape, weights.shape
    groups = 1 if scales is None else scales.shape[2]
    blocks = sizes or gpu_matmul_blocks(
        rows, columns, depth, weights.dtype, experts, depth // groups, out_dtype.itemsize, x.dtype
    )
    check_gpu_matmul(x, weights, groups, blocks)
    from jaxinfer_kernels.gpu.grouped_matmul import grouped_matmul_gpu  # needs jax 0.11, see `unavailable`

    return grouped_matmul_gpu(x, weights, group_sizes, scales, zeros, out_dtype, blocks)


def _loop(
    x: jax.Array,
    weights: jax.Array,
    group_sizes: jax.Array,
    scales: jax.Array | None,
    zeros: jax.Array | None,
    out_dtype: jnp.dtype,
) -> jax.Array:
    total, columns = x.shape[0], weights.shape[1]
    rows = _tile_rows(total, weights.shape[0])
    items = group_tiles(group_sizes, total, rows)
    spare = -total % rows
    x = jnp.pad(x, ((0, spare), (0, 0)))
    row = jnp.arange(rows)[:, None]

    def step(index: jax.Array, out: jax.Array) -> jax.Array:
        group, start = items.group[index], items.tile[index] * rows
        weight, some = _of_group(weights, group), jax.lax.dynamic_slice_in_dim(x, start, rows)
        if scales is None:
            product = multiply(some, weight).astype(out_dtype)
        else:
            of_group = None if zeros is None else zeros[group]
            product = multiply_scaled(some, weight, scales[group], of_group).astype(out_dtype)
        mine = (row >= items.low[index]) & (row < items.high[index])
        before = jax.lax.dynamic_slice_in_dim(out, start, rows)
        return jax.lax.dynamic_update_slice_in_dim(out, jnp.where(mine, product, before), start, 0)

    out = jax.lax.fori_loop(0, items.busy, step, zeros_after(x, (total + spare, columns), out_dtype))
    return out[:total]


def _of_group(weights: jax.Array, group: jax.Array) -> jax.Array:
    """weights [E, N, K] of one group, [N, K].

    XLA on CPU slices bfloat16 as float32, and would convert the weights of all groups before the loop, in every step
    (jax 0.10.2). The barrier ties them to the loop's index, so that it converts only the slice.
    """
    tied = jax.lax.platform_dependent(
        weights, group, cpu=lambda *pair: jax.lax.optimization_barrier(pair), default=lambda *pair: pair
    )
    return tied[0][tied[1]]


def _tile_rows(total: int, groups: int) -> int:
    """A power of two near the mean group, so that few rows are multiplied for other groups and thrown away."""
    return min(max(1 << (total // groups).bit_length(), 8), 256)


def _check(
    x: jax.Array,
    weights: Weights,
    group_sizes: jax.Array,
    scales: Weights | None,
    zeros: Weights | None,
    backend: str,
    block_sizes: MatmulBlocks | GpuMatmulBlocks | None,
) -> None:
    check_backend(backend, block_sizes)
    check_activations(x, weights, scales, zeros, backend)
    if weights.ndim != 3 or 0 in weights.shape or not has_depth(weights, x.shape[1]):
        allowed = f"[E, N, {x.shape[1]}], or packed in uint8 where K is a multiple of {BLOCK}"
        raise ValueError(f"weights must be {allowed}, not {weights.shape} of {weights.dtype}")
    if not is_quantised(weights) and weights.dtype not in PLAIN:
        raise ValueError(
            f"weights must be bfloat16, float16, float32, int8, int4, e4m3, e2m1 or packed, not {weights.dtype}"
        )
    if group_sizes.shape != weights.shape[:1] or group_sizes.dtype != jnp.int32:
        raise ValueError(
            f"group_sizes must be {weights.shape[:1]} of int32, not {group_sizes.shape} of {group_sizes.dtype}"
        )
    if is_quantised(weights) != (scales is not None):
        raise ValueError(f"scales must be given for quantised weights and for no others; weights are {weights.dtype}")
    if zeros is not None and scales is None:
        raise ValueError(f"zeros must be given with scales alone, for quantised weights; weights are {weights.dtype}")
