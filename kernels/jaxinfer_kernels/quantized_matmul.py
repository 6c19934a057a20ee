"""Matmul with weights held as int8, int4, e4m3 or e2m1; activations as they are, or codes too."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer_kernels.cpu.matmul import native_product
from jaxinfer_kernels.cpu.packed import BLOCK, has_depth, unpacked
from jaxinfer_kernels.dequantise import (
    check_activations,
    is_quantised,
    is_rounded,
    multiply_scaled,
    sides_with_groups,
)
from jaxinfer_kernels.gpu.matmul_blocks import GpuMatmulBlocks, check_gpu_matmul, gpu_matmul_blocks
from jaxinfer_kernels.matmul_backends import check_backend
from jaxinfer_kernels.matmul_blocks import MatmulBlocks, arriving_bytes, matmul_blocks
from jaxinfer_kernels.stack import Weights, sliced


def quantized_matmul(
    x: jax.Array,
    weight: Weights,
    scales: Weights,
    *,
    zeros: Weights | None = None,
    out_dtype: jnp.dtype | None = None,
    backend: str = "xla",
    block_sizes: MatmulBlocks | GpuMatmulBlocks | None = None,
) -> jax.Array:
    """x @ ((weight - zeros) * scales).T, with sums in float32.

    x: [T, K], bfloat16 or float32, or float16 for `xla`; or codes, int8 or float8_e4m3fn, whose scales the caller
    applies to the result.
    weight: [N, K], int8, int4, float8_e4m3fn or float4_e2m1fn; for codes of x their type; or uint8 [N, K // 2], int4 as
    `cpu.packed.pack` packs it. scales: [N], or [N, K // group] for a scale every `group` values of K, where x is no
    codes; float32, bfloat16, float8_e4m3fn or float8_e8m0fnu. zeros: as scales, float32 or bfloat16, or None for
    symmetric weights, as those of e2m1 are, and for codes of x; they need not be whole. Weight, scales and zeros may be
    layers of stacks (`StackLayer`), all of one index. out_dtype: by default x's, float32 for codes. block_sizes:
    MatmulBlocks for `mosaic_tpu`, GpuMatmulBlocks for `mosaic_gpu`, by default by the shapes. Returns [T, N].

    `xla` dequantises to x's type, then multiplies; XLA may hold the whole dequantised weight. `mosaic_tpu` widens
    weights in VMEM. There a scale a channel is applied to the sum, and one a group to the product of its group where a
    block has no more rows than a group has values: weights then enter the MXU exact, as the codes they are. For more
    rows a group's weights are scaled first, and rounded to x's type, as that takes fewer multiplications. `mosaic_gpu`
    (on Hopper; x in bfloat16 or codes) widens them in registers, exact, and scales the product of each group. `native`
    (on a CPU; weights in int8 or packed) multiplies in float32, and codes with codes as they are.

    Codes are multiplied with codes as they are, where the device can: Hopper can for both types, a TPU's MXU for e4m3
    on v7x and for int8 before it; the other type is widened on its way or in the MXU, exact. The sum of int8 is exact
    until it is float32. On a GPU that of e4m3 leaves the matrix unit every 128 values, as that keeps about 14 bits of
    it. On v5e, v5p and v6e NaN of e4m3 is multiplied as a number.

    Raises ValueError for an unknown backend or one that this jax does not have, types and shapes other than those
    above, block_sizes with `xla` or of another backend, on `mosaic_tpu` for groups that neither divide 128 nor are
    multiples of it, on `mosaic_gpu` for N or K that are no multiples of 64 and groups of other sizes than 16, 32
    and those, and on `native` for other weights than these and groups that are no multiples of 16.

    Weight-only quantisation as in GPTQ (arXiv:2210.17323) and AWQ (arXiv:2306.00978), which give such weights.

    Cost: 2 T N K FLOPs; N K bytes of weights (half for int4 and e2m1), N K / group scales of 4, x again for every block
    of columns, T N out. Per byte of int8 weight there are 2 T FLOPs. A chip whose matmul rate is r FLOPs for each byte
    it reads (v5e 240, v5p 166, v6e 560, v7x 313) is bound by reading weights below T = r / 2 (int4: r / 4), and by
    the MXU above. At T = 8 all four chips wait for memory, at T = 4096 all for the MXU; at T = 256 only v6e still
    waits for int8 weights, and none for int4. By the schedules that the TPU compiler writes, widening int4 takes about
    as long as reading it on v5e and v6e at T = 8, and 1.5 to 2 times as long on v5p and v7x.
    """
    out_dtype = jnp.dtype(out_dtype or (jnp.float32 if is_rounded(x) else x.dtype))
    scales, zeros = _checked(x, weight, scales, zeros, backend, block_sizes)
    if backend == "native":
        return native_product(x, weight, scales=scales, zeros=zeros, out_dtype=out_dtype)
    weight, scales, zeros = unpacked(weight, scales, zeros)
    if backend == "mosaic_tpu":
        return _on_tpu(x, weight, scales, zeros, out_dtype, block_sizes)
    matrix, its_scales, its_zeros = sliced((weight, scales, zeros))
    if backend == "xla":
        return multiply_scaled(x, matrix, its_scales, its_zeros).astype(out_dtype)
    return _on_gpu(x, matrix, its_scales, its_zeros, out_dtype, block_sizes)


def _on_tpu(
    x: jax.Array, weight: Weights, scales: Weights, zeros: Weights | None, out_dtype: jnp.dtype, sizes: Any
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
    blocks = sizes or gpu_matmul_blocks(
        rows, columns, depth, weight.dtype, 1, depth // groups, out_dtype.itemsize, x.dtype
    )
    check_gpu_matmul(x, weight, groups, blocks)
    from jaxinfer_kernels.gpu.quantized_matmul import quantized_matmul_gpu  # needs jax 0.11, see `unavailable`

    return quantized_matmul_gpu(x, weight, scales, zeros, out_dtype, blocks)


def _checked(
    x: jax.Array,
    weight: Weights,
    scales: Weights,
    zeros: Weights | None,
    backend: str,
    block_sizes: MatmulBlocks | GpuMatmulBlocks | None,
) -> tuple[Weights, Weights | None]:
    check_backend(backend, block_sizes)
    check_activations(x, weight, scales, zeros, backend)
    depth = x.shape[1]
    if weight.ndim != 2 or not has_depth(weight, depth) or not is_quantised(weight):
        raise ValueError(
            f"weight must be [N, {depth}] of int8, int4, e4m3 or e2m1, or packed in uint8 where K is a multiple of "
            f"{BLOCK}, not {weight.shape} of {weight.dtype}"
        )
    return sides_with_groups(weight, scales, zeros)
