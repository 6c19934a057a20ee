"""Both matmuls by the GPU kernel, in the Mosaic GPU interpreter, beside a float64 oracle; its items and its blocks."""

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels.gpu.group_items import group_items
from jaxinfer_kernels.gpu.matmul_blocks import GpuMatmulBlocks, check_gpu_matmul, gpu_matmul_blocks
from jaxinfer_kernels.grouped_matmul import grouped_matmul
from jaxinfer_kernels.matmul_blocks import MatmulBlocks, value_bytes
from jaxinfer_kernels.quantized_matmul import quantized_matmul

from tests.draws import random_cases
from tests.kernels.matmul_cases import (
    E2M1,
    E4M3,
    E8M0,
    ROUNDED,
    SIZES,
    TOLERANCE,
    activations,
    codes,
    dequantised,
    grouped_case,
    normal,
    positive,
    run,
    wide,
    worst_code_error,
    worst_error,
)

OLD = jax.__version_info__ < (0, 11)
interpreted = pytest.mark.skipif(OLD, reason="Mosaic GPU needs jax 0.11 or newer")
BLOCKS = GpuMatmulBlocks(rows=16, columns=64, depth=64, warpgroups=1, stages=2, programs=3)
WIDE = GpuMatmulBlocks(rows=8, columns=128, depth=128, warpgroups=2, stages=3, splits=2, programs=2)
TWO_HIGH = GpuMatmulBlocks(rows=16, columns=128, depth=64, warpgroups=1, stages=2, programs=2)


def quantized_error(
    shape: tuple[int, int, int],
    weight_type: Any,
    group: int | None,
    zeros: bool,
    blocks: GpuMatmulBlocks,
    scale_type: Any = jnp.float32,
    dtype: Any = jnp.bfloat16,
) -> float:
    rows, columns, depth = shape
    rng = np.random.default_rng(rows + columns + depth)
    x, weight = activations(rng, rows, depth, dtype=dtype), codes(rng, columns, depth, dtype=weight_type)
    sides = (columns,) if group is None else (columns, depth // group)
    scales, shift = positive(rng, *sides, dtype=scale_type), normal(rng, *sides) * 3 if zeros else None
    result = run(quantized_matmul, x, weight, scales, named={"zeros": shift}, blocks=blocks, backend="mosaic_gpu")
    return worst_error(result, wide(x) @ dequantised(weight, scales, shift).T)


def grouped_error(
    sizes: list[int],
    *,
    rows: int = 50,
    weight_type: Any = jnp.bfloat16,
    group: int | None = None,
    zeros: bool = False,
    scale_type: Any = jnp.float32,
    blocks: Any = BLOCKS,
    dtype: Any = jnp.bfloat16,
) -> float:
    kind = (dtype, weight_type, group, zeros, scale_type)
    x, weights, named, expected = grouped_case(sizes, rows, (128, 128), *kind)
    counts = jnp.array(sizes, jnp.int32)
    result = run(grouped_matmul, x, weights, counts, named=named, blocks=blocks, backend="mosaic_gpu")
    return worst_error(result, expected)


@interpreted
@pytest.mark.parametrize(
    ("weight_type", "group", "zeros", "blocks"),
    [
        (jnp.int8, None, False, BLOCKS),
        (jnp.int8, None, True, WIDE),
        (jnp.int4, 128, True, BLOCKS),
        (jnp.int4, 128, False, WIDE),
        (jnp.int4, 32, False, BLOCKS),
        (jnp.int8, 64, True, WIDE),
        (jnp.int8, None, False, TWO_HIGH),
        (E4M3, None, False, BLOCKS),
        (E4M3, 128, True, WIDE),
        (E4M3, 32, False, WIDE),
    ],
)
def test_quantized(weight_type: Any, group: int | None, zeros: bool, blocks: GpuMatmulBlocks):
    assert quantized_error((21, 128, 256), weight_type, group, zeros, blocks) < TOLERANCE[jnp.bfloat16]


def _sums_tolerance(dtype: Any) -> float:
    """Hopper's matrix units keep some 14 bits of a sum of e4m3: errors of 2.5e-4 to 4.4e-4 were seen on an H100."""
    from tests.kernels.gpu_interpreter import on_gpu

    return 1e-3 if dtype == E4M3 and on_gpu() else TOLERANCE[jnp.float32]


@interpreted
@pytest.mark.parametrize("blocks", [BLOCKS, WIDE, TWO_HIGH])
@pytest.mark.parametrize("dtype", ROUNDED)
def test_codes_with_codes(dtype: Any, blocks: GpuMatmulBlocks):
    found = quantized_error((21, 128, 512), dtype, None, False, blocks, dtype=dtype)
    assert found < _sums_tolerance(dtype)


@interpreted
@pytest.mark.parametrize("dtype", ROUNDED)
def test_groups_of_codes_with_codes(dtype: Any):
    found = grouped_error(SIZES["rows-of-no-group"], rows=23, weight_type=dtype, dtype=dtype)
    assert found < _sums_tolerance(dtype)


@interpreted
def test_sums_of_e4m3_leave_the_matrix_unit_early():
    """In an interpreter whose wgmma keeps 14 bits of a sum of e4m3, as Hopper's does: of 2,048 positive products the
    later ones would lose most of theirs."""
    from tests.kernels.gpu_interpreter import on_gpu
    from tests.kernels.gpu_registers import coarse_sums

    rng = np.random.default_rng(0)
    x, weight = (abs(activations(rng, rows, 2048, dtype=jnp.float32)).astype(E4M3) for rows in (8, 64))
    blocks = GpuMatmulBlocks(rows=8, columns=64, depth=128, warpgroups=1, stages=2, programs=1)
    with nullcontext() if on_gpu() else coarse_sums():
        result = run(quantized_matmul, x, weight, jnp.ones(64), named={}, blocks=blocks, backend="mosaic_gpu")
    assert worst_error(result, wide(x) @ wide(weight).T) < (1e-3 if on_gpu() else 5e-4)


E2M1_KINDS = [(32, E8M0), (16, jnp.float32), (16, E4M3), (128, jnp.float32), (32, jnp.bfloat16)]


@interpreted
@pytest.mark.parametrize("blocks", [BLOCKS, WIDE])
@pytest.mark.parametrize(("group", "scale_type"), E2M1_KINDS)
def test_e2m1(group: int, scale_type: Any, blocks: GpuMatmulBlocks):
    assert quantized_error((21, 128, 256), E2M1, group, False, blocks, scale_type) < TOLERANCE[jnp.bfloat16]


@interpreted
@pytest.mark.parametrize(("group", "scale_type"), E2M1_KINDS[:3])
def test_groups_of_e2m1(group: int, scale_type: Any):
    found = grouped_error([3, 0, 9, 4, 2, 0], rows=23, weight_type=E2M1, group=group, scale_type=scale_type)
    assert found < TOLERANCE[jnp.bfloat16]


@interpreted
@pytest.mark.long
@pytest.mark.parametrize("zeros", [False, True], ids=["symmetric", "zeros"])
@pytest.mark.parametrize("group", [None, 256, 128, 64, 32])
@pytest.mark.parametrize("weight_type", [jnp.int8, jnp.int4, E4M3])
@pytest.mark.parametrize("blocks", [BLOCKS, WIDE])
def test_all_kinds(weight_type: Any, group: int | None, zeros: bool, blocks: GpuMatmulBlocks):
    assert quantized_error((37, 256, 512), weight_type, group, zeros, blocks) < TOLERANCE[jnp.bfloat16]


@interpreted
@pytest.mark.parametrize("rows", [1, 8, 17])
def test_the_rule_for_blocks_and_any_number_of_rows(rows: int):
    blocks = gpu_matmul_blocks(rows, 128, 512, jnp.dtype(jnp.int8), 1, 512)
    few = GpuMatmulBlocks(**{**vars(blocks), "programs": 2})
    assert quantized_error((rows, 128, 512), jnp.int8, None, False, few) < TOLERANCE[jnp.bfloat16]


@interpreted
def test_sums_are_exact_where_bfloat16_scales_would_not_be():
    """Integers times ones: the result is a whole number, and a scale of 1 + 2**-20 is not rounded away."""
    x, weight = jnp.ones((8, 64), jnp.bfloat16), jnp.full((64, 64), 127, jnp.int8)
    scale = 1 + 2.0**-20
    named = {"out_dtype": jnp.dtype(jnp.float32)}
    result = run(
        lambda *arrays, **rest: quantized_matmul(*arrays, **{**rest, **named}),
        *(x, weight, jnp.full(64, scale)),
        named={},
        blocks=BLOCKS,
        backend="mosaic_gpu",
    )
    np.testing.assert_array_equal(result, np.float32(64 * 127) * np.float32(scale))


@interpreted
@pytest.mark.parametrize("dtype", [E4M3, E2M1])
def test_every_code_is_exact(dtype: Any):
    assert worst_code_error(BLOCKS, "mosaic_gpu", dtype) == 0


@interpreted
def test_nan_stays_in_its_row():
    rng = np.random.default_rng(0)
    x = normal(rng, 20, 128, dtype=jnp.bfloat16).at[7].set(jnp.nan)
    weight, scales = codes(rng, 128, 128, dtype=jnp.int8), positive(rng, 128)
    result = run(quantized_matmul, x, weight, scales, named={}, blocks=BLOCKS, backend="mosaic_gpu")
    assert np.flatnonzero(np.isnan(result).any(axis=1)).tolist() == [7]


@interpreted
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_groups(sizes: list[int]):
    assert grouped_error(sizes) < TOLERANCE[jnp.bfloat16]


@interpreted
@pytest.mark.parametrize(
    ("weight_type", "group", "zeros"),
    [
        (jnp.int8, None, False),
        (jnp.int8, None, True),
        (jnp.int4, 64, False),
        (jnp.int4, 64, True),
        (E4M3, None, False),
        (E4M3, 64, True),
    ],
)
def test_groups_of_quantised_weights(weight_type: Any, group: int | None, zeros: bool):
    sizes = SIZES["rows-of-no-group"]
    found = grouped_error(sizes, rows=23, weight_type=weight_type, group=group, zeros=zeros)
    assert found < TOLERANCE[jnp.bfloat16]


@interpreted
@pytest.mark.long
def test_random_groups():
    for seed in random_cases():
        rng = np.random.default_rng(seed)
        rows, experts = int(rng.integers(1, 90)), int(rng.integers(1, 12))
        sizes = np.diff(np.sort(rng.integers(0, rows + 1, experts)), prepend=0).tolist()
        assert grouped_error(sizes, rows=rows) < TOLERANCE[jnp.bfloat16]


@pytest.mark.few(16)
@pytest.mark.parametrize("seed", range(30))
def test_items_are_every_row_once(seed: int):
    rng = np.random.default_rng(seed)
    rows, experts, tile = int(rng.integers(1, 120)), int(rng.integers(1, 20)), int(rng.choice([8, 16, 64]))
    sizes = np.diff(np.sort(rng.integers(0, rows + 8, experts)), prepend=0)
    held = max(-(-rows // 8) * 8, tile)
    items = jax.jit(group_items, static_argnums=(1, 2, 3))(jnp.asarray(sizes, jnp.int32), rows, held, tile)
    busy, every = np.asarray(items.ends)
    assert every <= len(items.group)
    group_of = np.full(rows, experts)
    ends = np.minimum(np.cumsum(sizes), rows)
    for group in reversed(range(experts)):
        group_of[: ends[group]] = group
    seen = np.zeros(rows, int)
    for item in range(every):
        group, row, low, high = (int(part[item]) for part in items[1:])
        assert row % 8 == 0
        assert 0 <= row <= held - tile
        assert 0 <= low < high <= tile
        assert (group_of[row + low : row + high] == group).all()
        assert (group < experts) == (item < busy)
        seen[row + low : row + high] += 1
    assert (seen == 1).all()


def test_small_groups_have_one_item_each():
    """By tiles of fixed places, of 16 rows, the group in the middle would have two."""
    items = group_items(jnp.array([10, 9, 3], jnp.int32), 22, 24, 16)
    assert items.group[: int(items.ends[1])].tolist() == [0, 1, 2]


@pytest.mark.parametrize("rows", [1, 8, 33, 64, 256, 4096])
@pytest.mark.parametrize(
    ("columns", "depth"), [(14336, 4096), (4096, 14336), (768, 2048), (2048, 7168), (16384, 53248), (192, 1408)]
)
@pytest.mark.parametrize(
    ("weight_type", "group", "experts", "out_bytes", "x_type"),
    [
        (jnp.bfloat16, 0, 128, 2, jnp.bfloat16),
        (jnp.int8, 0, 1, 2, jnp.bfloat16),
        (jnp.int8, 0, 1, 4, jnp.bfloat16),
        (jnp.int4, 128, 1, 4, jnp.bfloat16),
        (jnp.int4, 32, 1, 4, jnp.bfloat16),
        (jnp.int4, 32, 8, 2, jnp.bfloat16),
        (E2M1, 16, 1, 4, jnp.bfloat16),
        (E4M3, 0, 1, 4, E4M3),
        (E4M3, 0, 8, 4, E4M3),
        (jnp.int8, 0, 1, 4, jnp.int8),
    ],
)
def test_the_rule_fits_shared_memory(
    columns: int, depth: int, rows: int, weight_type: Any, group: int, experts: int, out_bytes: int, x_type: Any
):
    weight = jnp.dtype(weight_type)
    blocks = gpu_matmul_blocks(rows, columns, depth, weight, experts, group or depth, out_bytes, x_type)
    weights: Any = jax.ShapeDtypeStruct((columns, depth), weight_type)
    x: Any = jax.ShapeDtypeStruct((rows, depth), x_type)
    check_gpu_matmul(x, weights, depth // (group or depth), blocks)
    stage = blocks.depth * (blocks.columns * value_bytes(weight) + jnp.dtype(x_type).itemsize * blocks.rows)
    made = blocks.rows * blocks.columns * (out_bytes if blocks.splits == 1 else 4)
    assert blocks.stages >= 3
    assert blocks.stages * (stage + 16) + made <= 227 << 10


@interpreted
def test_a_plain_product_has_no_race():
    assert reported(jnp.bfloat16) == set()


@interpreted
@pytest.mark.parametrize("dtype", ROUNDED)
def test_codes_with_codes_have_no_race(dtype: Any):
    assert reported(dtype, dtype) == set()


@interpreted
def test_widened_weights_have_the_race_that_is_explained():
    """Registers are filled by plain loads, and TMA fills the same place again after the barrier `free`.

    The detector wants a fence of the asynchronous proxy between a plain load and a later copy. None is needed: the
    loads have given their values, which wgmma took, before their thread arrives at the barrier; CUTLASS has none
    either.
    """
    assert reported(jnp.int8) == {"write in step, read in _weights"}


class Late:
    """The namespace of Mosaic GPU, with waits put off until what they should come before is done."""

    def __init__(self, namespace: Any, put_behind: str) -> None:
        self.namespace, self.put_behind, self.waits = namespace, put_behind, []

    def __getattr__(self, name: str) -> Any:
        original = getattr(self.namespace, name)
        if name == "barrier_wait":
            return self.waits.append
        if name != self.put_behind:
            return original

        def changed(*args: Any) -> None:
            original(*args)
            while self.waits:
                self.namespace.barrier_wait(self.waits.pop())

        return changed


@interpreted
def test_a_wait_that_comes_too_late_is_a_race(monkeypatch: pytest.MonkeyPatch):
    from jax.experimental.pallas import mosaic_gpu as plgpu
    from jaxinfer_kernels.gpu import tile_product

    monkeypatch.setattr(tile_product, "plgpu", Late(plgpu, "wgmma"))
    assert any("read in changed" in race for race in reported(jnp.bfloat16))


def reported(weight_type: Any, dtype: Any = jnp.bfloat16) -> set[str]:
    """The races of one grouped matmul."""
    from tests.kernels.gpu_interpreter import on_gpu
    from tests.kernels.gpu_registers import races, register_interpreter

    if on_gpu():
        pytest.skip("races are seen in the interpreter alone")
    rng = np.random.default_rng(0)
    x, counts = activations(rng, 24, 256, dtype=dtype), jnp.array([10, 0, 12], jnp.int32)
    plain = weight_type == jnp.bfloat16
    weights = normal(rng, 3, 64, 256, dtype=weight_type) if plain else codes(rng, 3, 64, 256, dtype=weight_type)
    scales = None if plain else positive(rng, 3, 64)
    with register_interpreter() as reports:
        call = jax.jit(lambda *arrays: grouped_matmul(*arrays, scales=scales, backend="mosaic_gpu", block_sizes=BLOCKS))
        jax.block_until_ready(call(x, weights, counts))
    return races(reports)


@pytest.mark.skipif(not OLD, reason="this jax has Mosaic GPU")
@pytest.mark.smoke
def test_an_old_jax_is_refused():
    with pytest.raises(ValueError, match=r"mosaic_gpu needs jax 0\.11 or newer"):
        quantized_matmul(
            jnp.ones((4, 64), jnp.bfloat16), jnp.ones((64, 64), jnp.int8), jnp.ones(64), backend="mosaic_gpu"
        )


@interpreted
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": jnp.ones((4, 96), E4M3), "weight": jnp.ones((64, 96), E4M3)}, "multiples of 64 .* not 64 and 96"),
        ({"x": jnp.ones((4, 64))}, "x and plain weights must be bfloat16 for mosaic_gpu, not float32 and int8"),
        ({"weight": jnp.ones((72, 64), jnp.int8), "scales": jnp.ones(72)}, "N and K must be multiples of 64"),
        ({"scales": jnp.ones((64, 8))}, "groups of 16, of 32 or of a multiple of 64 for mosaic_gpu, not of 8"),
        ({"block_sizes": MatmulBlocks(16, 128)}, "block_sizes of backend mosaic_gpu must be GpuMatmulBlocks, not Matm"),
        ({"block_sizes": TWO_HIGH}, "N 64 and K 64 with groups of 64 cannot be cut as block_sizes say"),
    ],
)
def test_errors(change: dict[str, Any], message: str):
    x = jnp.ones((4, 64), jnp.bfloat16)
    given = {"x": x, "weight": jnp.ones((64, 64), jnp.int8), "scales": jnp.ones(64), "backend": "mosaic_gpu"}
    with pytest.raises(ValueError, match=message):
        quantized_matmul(**{**given, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 12}, "rows must be a multiple of 8 from 8 to 256, not 12"),
        ({"columns": 96}, "columns must be a multiple of 128, not 96"),
        ({"depth": 48}, "depth must be 64 or 128, not 48"),
        ({"stages": 0}, "stages must be at least 1, not 0"),
    ],
)
def test_wrong_blocks(change: dict[str, int], message: str):
    with pytest.raises(ValueError, match=message):
        GpuMatmulBlocks(**{"rows": 16, "columns": 128, "depth": 64, **change})
