"""Matmul with weights held as int8, int4, e4m3 or e2m1: the activations stay as they are."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer_kernels.dequantise import dequantise, is_quantised, multiply, sides_with_groups
from jaxinfer_kernels.gpu.matmul_blocks import GpuMatmulBlocks, check_gpu_matmul, gpu_matmul_blocks
from jaxinfer_kernels.matmul_backends import check_backend
from jaxinfer_kernels.matmul_blocks import MatmulBlocks, arriving_bytes, matmul_blocks


def quantized_matmul(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    *,
    zeros: jax.Array | None = None,
    out_dtype: jnp.dtype | None = None,
    backend: str = "xla",
    block_sizes: MatmulBlocks | GpuMatmulBlocks | None = None,
) -> jax.Array:
    """x @ ((weight - zeros) * scales).T, with sums in float32.

    x: [T, K], bfloat16 or float32. weight: [N, K], int8, int4, float8_e4m3fn or float4_e2m1fn. scales: [N], or
    [N, K // group] for a scale every `group` values of K; float32, bfloat16, float8_e4m3fn or float8_e8m0fnu. zeros: as
    scales, float32 or bfloat16, or None for symmetric weights, as those of e2m1 are; they need not be whole. out_dtype:
    by default x's. block_sizes: MatmulBlocks for `mosaic_tpu`, GpuMatmulBlocks for `mosaic_gpu`, by default by the
    shapes. Returns [T, N].

    `xla` dequantises to x's type, then multiplies; XLA may hold the whole dequantised weight. `mosaic_tpu` widens
    weights in VMEM. There a scale a channel is applied to the sum, and one a group to the product of its group where a
    block has no more rows than a group has values: weights then enter the MXU exact, as the codes they are. For more
    rows a group's weights are scaled first, and rounded to x's type, as that takes fewer multiplications. `mosaic_gpu`
    (on Hopper; x in bfloat16) widens them in registers, exact, and scales the product of each group.
    Raises ValueError for an unknown backend or one that this jax does not have, types and shapes other than those
    above, block_sizes with `xla` or of another backend, on `mosaic_tpu` for groups that neither divide 128 nor are
    multiples of it, and on `mosaic_gpu` for N or K that are no multiples of 64 and groups of other sizes than 16, 32
    and those.

    Weight-only quantisation as in GPTQ (arXiv:2210.17323) and AWQ (arXiv:2306.00978), which give such weights.

    Cost: 2 T N K FLOPs; N K bytes of weights (half for int4 and e2m1), N K / group scales of 4, x again for every block
    of columns, T N out. Per byte of int8 weight there are 2 T FLOPs. A chip whose matmul rate is r FLOPs for each byte
    it reads (v5e 240, v5p 166, v6e 560, v7x 313) is bound by reading weights below T = r / 2 (int4: r / 4), and by
    the MXU above. At T = 8 all four chips wait for memory, at T = 4096 all for the MXU; at T = 256 only v6e still
    waits for int8 weights, and none for int4. By the schedules that the TPU compiler writes, widening int4 takes about
    as long as reading it on v5e and v6e at T = 8, and 1.5 to 2 times as long on v5p and v7x.
    """
    out_dtype = jnp.dtype(out_dtype or x.dtype)
    scales, zeros = _checked(x, weight, scales, zeros, backend, block_sizes)
    if backend == "xla":
        return multiply(x, dequantise(weight, scales, zeros, x.dtype)).astype(out_dtype)
    run = _on_gpu if backend == "mosaic_gpu" else _on_tpu
    return run(x, weight, scales, zeros, out_dtype, block_sizes)


def _on_tpu(
    x: jax.Array, weight: jax.Array, scales: jax.Array, zeros: jax.Array | None, out_dtype: jnp.dtype, sizes: Any
) -> jax.Array:
    from jaxinfer_kernels.tpu.quantized_matmul import quantized_matmul_tpu

    (rows, depth), columns = x.shape, weight.shape[0]
    item = arriving_bytes(weight.dtype, depth // scales.shape[1])
    blocks = sizes or matmul_blocks(rows, columns, depth, x.dtype.itemsize, item, 1)
    return quantized_matmul_tpu(x, weight, scales, zeros, out_dtype, blocks)


def _on_gpu(
    x: jax.Array, weight: jax.Array, scales: jax.Array, zeros: jax.Array | None, out_dtype: jnp.dtype, sizes: Any
) -> jax.Array:
    (rows, depth), (columns, groups) = x.shape, scales.shape
    blocks = sizes or gpu_matmul_blocks(rows, columns, depth, weight.dtype, 1, depth // groups, out_dtype.itemsize)
    check_gpu_matmul(x, weight, groups, blocks)
    from jaxinfer_kernels.gpu.quantized_matmul import quantized_matmul_gpu  # needs jax 0.11, see `unavailable`

    return quantized_matmul_gpu(x, weight, scales, zeros, out_dtype, blocks)


def _checked(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    backend: str,
    block_sizes: MatmulBlocks | GpuMatmulBlocks | None,
) -> tuple[jax.Array, jax.Array | None]:
    check_backend(backend, block_sizes)
    if x.ndim != 2 or 0 in x.shape or x.dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"x must be [T, K] of float32 or bfloat16, not {x.shape} of {x.dtype}")
    if weight.ndim != 2 or weight.shape[1] != x.shape[1] or not is_quantised(weight):
        raise ValueError(
            f"weight must be [N, {x.shape[1]}] of int8, int4, e4m3 or e2m1, not {weight.shape} of {weight.dtype}"
        )
    return sides_with_groups(weight, scales, zeros)
