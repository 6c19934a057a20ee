"""The weight-only matmul beside a float64 oracle, in plain JAX and in the TPU interpreter."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels.matmul_blocks import MatmulBlocks, arriving_bytes, matmul_blocks
from jaxinfer_kernels.quantized_matmul import quantized_matmul
from jaxinfer_kernels.tpu.tile_product import cut_depth, vmem_bytes

from tests.kernels.matmul_cases import (
    E2M1,
    E4M3,
    E8M0,
    ROUNDED,
    TOLERANCE,
    activations,
    codes,
    dequantised,
    normal,
    positive,
    run,
    wide,
    worst_code_error,
    worst_error,
)

BACKENDS = ("xla", "mosaic_tpu")
BLOCKS = MatmulBlocks(rows=16, columns=128)


def error(
    backend: str,
    rows: int,
    columns: int,
    depth: int,
    *,
    weight_type: Any = jnp.int8,
    dtype: Any = jnp.float32,
    group: int | None = None,
    zeros: bool = False,
    scale_type: Any = jnp.float32,
    blocks: MatmulBlocks | None = BLOCKS,
) -> float:
    rng = np.random.default_rng(rows + columns + depth)
    x, weight = activations(rng, rows, depth, dtype=dtype), codes(rng, columns, depth, dtype=weight_type)
    sides = (columns,) if group is None else (columns, depth // group)
    scales = positive(rng, *sides, dtype=scale_type)
    shift = normal(rng, *sides) * 3 if zeros else None
    result = run(quantized_matmul, x, weight, scales, named={"zeros": shift}, blocks=blocks, backend=backend)
    return worst_error(result, wide(x) @ dequantised(weight, scales, shift).T)


@pytest.mark.smoke
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("weight_type", "group", "zeros", "dtype"),
    [
        (jnp.int8, None, False, jnp.float32),
        (jnp.int4, None, True, jnp.bfloat16),
        (jnp.int4, 128, True, jnp.float32),
        (jnp.int8, 128, False, jnp.bfloat16),
        (jnp.int4, 32, False, jnp.bfloat16),
        (jnp.int8, 64, True, jnp.float32),
        (E4M3, None, False, jnp.float32),
        (E4M3, None, True, jnp.bfloat16),
        (E4M3, 128, False, jnp.bfloat16),
        (E4M3, 32, True, jnp.float32),
    ],
)
def test_oracle(weight_type: Any, group: int | None, zeros: bool, dtype: Any, backend: str):
    shape = (21, 200, 256)
    assert error(backend, *shape, weight_type=weight_type, dtype=dtype, group=group, zeros=zeros) < TOLERANCE[dtype]


@pytest.mark.smoke
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ROUNDED)
def test_codes_with_codes(dtype: Any, backend: str):
    """K is three chunks of the TPU kernel or more; the result is float32."""
    assert error(backend, 37, 200, 3072, weight_type=dtype, dtype=dtype) < TOLERANCE[jnp.float32]


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_of_int8_are_exact(backend: str):
    """Sums of odd products beyond 2**25, which float32 would round on the way, and a scale that bfloat16 would round.

    The TPU kernel takes all of K at once where it is no multiple of 128; it adds sums of several chunks in float32.
    """
    rng, scale = np.random.default_rng(0), np.float32(1 + 2.0**-20)
    x, weight = (2 * rng.integers(32, 64, (rows, 4100)) + 1 for rows in (8, 128))
    given = jnp.asarray(x, jnp.int8), jnp.asarray(weight, jnp.int8), jnp.full((128, 1), scale)
    result = run(quantized_matmul, *given, named={}, blocks=None, backend=backend)
    sums = x @ weight.T
    assert sums.min() > 2**25
    np.testing.assert_array_equal(result, sums.astype(np.float32) * scale)


@pytest.mark.smoke
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [9, 40], ids=["late", "early"])
@pytest.mark.parametrize(
    ("group", "scale_type", "dtype"),
    [
        (32, E8M0, jnp.float32),
        (32, E8M0, jnp.bfloat16),
        (16, jnp.float32, jnp.float32),
        (16, E4M3, jnp.bfloat16),
        (None, jnp.float32, jnp.float32),
    ],
)
def test_e2m1(group: int | None, scale_type: Any, dtype: Any, rows: int, backend: str):
    """Scales of each type, scaled after the product and before."""
    kinds = {"weight_type": E2M1, "scale_type": scale_type, "dtype": dtype}
    blocks = MatmulBlocks(rows=rows, columns=128)
    assert error(backend, rows, 200, 512, group=group, blocks=blocks, **kinds) < TOLERANCE[dtype]


@pytest.mark.parametrize("backend", BACKENDS)
def test_e2m1_with_groups_that_fill_the_lanes(backend: str):
    kinds = {"weight_type": E2M1, "scale_type": E8M0}
    assert error(backend, 16, 128, 4096, group=32, **kinds) < TOLERANCE[jnp.float32]


@pytest.mark.few(3)
@pytest.mark.parametrize("weight_type", [E2M1, jnp.int4])
@pytest.mark.parametrize("rows", [9, 40], ids=["late", "early"])
@pytest.mark.parametrize("depth", [192, 832, 2880])
def test_a_depth_of_which_the_last_chunk_is_shorter(depth: int, rows: int, weight_type: Any):
    """K is no multiple of 128: gpt-oss' has 2880 values."""
    blocks = MatmulBlocks(rows=rows, columns=128)
    assert error("mosaic_tpu", rows, 130, depth, group=32, weight_type=weight_type, blocks=blocks) < 1e-5


def test_zeros_want_whole_chunks():
    with pytest.raises(ValueError, match="with zeros a multiple of it, for mosaic_tpu; K is 192 with groups of 32"):
        error("mosaic_tpu", 9, 128, 192, group=32, zeros=True)


@pytest.mark.parametrize("group", [32, 16])
def test_the_largest_and_smallest_scales_of_e2m1(group: int):
    """Powers of two beyond bfloat16's 2**-126 to 2**127 are none of e8m0's but 2**-127, which becomes 0."""
    every = np.arange(255, dtype=np.uint8)
    scales, weight = jnp.asarray(every.view(E8M0))[:, None], jnp.full((255, group), 0.5, E2M1)
    result = quantized_matmul(jnp.eye(group)[:1], weight, scales)
    wanted = np.ldexp(np.float32(0.5), every.astype(int) - 127)
    np.testing.assert_array_equal(result[0, 2:], wanted[2:])
    assert result[0, 0] == 0


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("zeros", [False, True], ids=["symmetric", "zeros"])
@pytest.mark.parametrize("group", [None, 256, 128, 64, 16])
@pytest.mark.parametrize("weight_type", [jnp.int8, jnp.int4, E4M3])
def test_all_kinds(weight_type: Any, group: int | None, zeros: bool, dtype: Any, backend: str):
    shape = (37, 130, 768)
    assert error(backend, *shape, weight_type=weight_type, dtype=dtype, group=group, zeros=zeros) < TOLERANCE[dtype]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("shape", "group", "rows"),
    [
        ((1, 128, 128), None, 16),
        ((5, 48, 48), None, 5),
        ((33, 128, 768), 128, 16),
        ((200, 128, 256), 128, 144),
        ((16, 128, 2048), 16, 16),
    ],
    ids=["one-row", "below-a-lane", "three-chunks", "more-rows-than-a-group", "groups-fill-the-lanes"],
)
def test_shapes(shape: tuple[int, int, int], group: int | None, rows: int):
    blocks = MatmulBlocks(rows=rows, columns=min(shape[1], 128))
    assert error("mosaic_tpu", *shape, group=group, zeros=group is not None, blocks=blocks) < TOLERANCE[jnp.float32]


@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16_scales_and_the_rule_for_blocks(backend: str):
    assert error(backend, 20, 256, 256, group=64, scale_type=jnp.bfloat16, blocks=None) < TOLERANCE[jnp.float32]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("rows", "columns"),
    [(9, 640), (9, 896), (40, 1024), (40, 896)],
    ids=["late", "late-ragged", "early", "early-ragged"],
)
@pytest.mark.parametrize(
    ("weight_type", "group", "zeros", "scale_type"),
    [(jnp.int4, 32, True, jnp.float32), (E2M1, 16, False, E4M3)],
    ids=["int4", "e2m1"],
)
def test_blocks_of_several_slices_of_columns(
    weight_type: Any, group: int, zeros: bool, scale_type: Any, rows: int, columns: int
):
    """The TPU kernel multiplies 256 columns at a time where it scales late, 512 where early."""
    kinds = {"weight_type": weight_type, "zeros": zeros, "scale_type": scale_type}
    blocks = MatmulBlocks(rows=rows, columns=columns)
    assert error("mosaic_tpu", rows, columns, 128, group=group, blocks=blocks, **kinds) < TOLERANCE[jnp.float32]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [E4M3, E2M1])
def test_every_code_is_exact(backend: str, dtype: Any):
    assert worst_code_error(BLOCKS, backend, dtype) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_stays_in_its_row(backend: str):
    rng = np.random.default_rng(0)
    x = normal(rng, 20, 128).at[7].set(jnp.nan)
    weight, scales = codes(rng, 128, 128, dtype=jnp.int8), positive(rng, 128)
    result = run(quantized_matmul, x, weight, scales, named={}, blocks=BLOCKS, backend=backend)
    assert np.flatnonzero(np.isnan(result).any(axis=1)).tolist() == [7]


@pytest.mark.parametrize("rows", [1, 8, 64, 256, 4096])
@pytest.mark.parametrize(("columns", "depth"), [(14336, 4096), (768, 2048), (2048, 7168), (16384, 53248), (200, 1408)])
@pytest.mark.parametrize(
    ("weight_type", "group"), [(jnp.bfloat16, 0), (jnp.int8, 0), (jnp.int4, 128), (E2M1, 32), (E2M1, 16)]
)
def test_the_rule_keeps_within_the_smallest_vmem(columns: int, depth: int, rows: int, weight_type: Any, group: int):
    dtype = jnp.dtype(jnp.bfloat16)
    blocks = matmul_blocks(rows, columns, depth, 2, arriving_bytes(weight_type, group or depth), 1)
    assert blocks.rows == rows or blocks.rows % 16 == 0
    assert blocks.columns == columns or blocks.columns % 128 == 0
    cut = cut_depth(depth, group or depth, blocks.rows, weight_type)
    groups = depth // (group or depth)
    # v7x has 64 MiB a core; XLA keeps some for itself.
    summed = groups > 1 and weight_type != E2M1
    assert vmem_bytes(blocks, depth, dtype, weight_type, dtype, groups, cut, summed) < 60 << 20


def test_out_dtype():
    x, weight, scales = jnp.ones((2, 8), jnp.bfloat16), jnp.ones((4, 8), jnp.int8), jnp.full(4, 0.3)
    assert quantized_matmul(x, weight, scales).dtype == jnp.bfloat16
    assert quantized_matmul(x, weight, scales, out_dtype=jnp.dtype(jnp.float32)).dtype == jnp.float32
    assert quantized_matmul(x.astype(jnp.int8), weight, scales).dtype == jnp.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "cuda"}, "backend 'cuda' is unknown; known are xla, mosaic_tpu"),
        ({"block_sizes": BLOCKS}, "block_sizes belong to mosaic_tpu"),
        (
            {"x": jnp.ones((4, 6, 8))},
            r"x must be \[T, K\] of float32, bfloat16, float16, int8 or e4m3, not \(4, 6, 8\)",
        ),
        ({"x": jnp.ones((4, 8), jnp.int4)}, r"x must be \[T, K\] of .*, not \(4, 8\) of int4"),
        ({"x": jnp.ones((4, 8), E4M3)}, "weights must be float8_e4m3fn, as x is, not int8"),
        ({"x": jnp.ones((4, 8), jnp.int8), "zeros": jnp.ones(2)}, "must have a scale a row and no zeros"),
        ({"x": jnp.ones((4, 8), jnp.int8), "scales": jnp.ones((2, 2))}, "must have a scale a row and no zeros"),
        ({"weight": jnp.ones((2, 8))}, r"weight must be \[N, 8\] of int8, .*, not \(2, 8\) of float32"),
        (
            {"weight": jnp.ones((2, 9), jnp.int8)},
            r"weight must be \[N, 8\] of int8, int4, e4m3 or e2m1, or packed in uint8 .*, not \(2, 9\) of int8",
        ),
        ({"scales": jnp.ones((8, 2))}, r"scales must be \(2,\) or \(2, a divisor of 8\), not \(8, 2\)"),
        ({"scales": jnp.ones(2, jnp.int32)}, "scales must be float32, bfloat16, float8_e4m3fn or float8_e8m0fnu"),
        ({"zeros": jnp.ones(2, E4M3)}, "zeros must be float32 or bfloat16, not float8_e4m3fn"),
        ({"weight": jnp.ones((2, 8), E2M1), "zeros": jnp.ones(2)}, "zeros do not go with e2m1"),
        ({"zeros": jnp.ones((2, 4))}, r"zeros must be \(2,\), as scales, not \(2, 4\)"),
        (
            {"scales": jnp.ones((2, 4)), "backend": "mosaic_tpu"},
            "K must be at least 128, with zeros a multiple of it, for mosaic_tpu; K is 8",
        ),
    ],
)
def test_errors(change: dict[str, Any], message: str):
    given = {"x": jnp.ones((4, 8)), "weight": jnp.ones((2, 8), jnp.int8), "scales": jnp.ones(2)}
    with pytest.raises(ValueError, match=message):
        quantized_matmul(**{**given, **change})
