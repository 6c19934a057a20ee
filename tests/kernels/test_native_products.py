"""Products of the native kernels beside a float64 oracle, and beside `xla`."""

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels.cpu.matmul import native_product
from jaxinfer_kernels.dequantise import multiply
from jaxinfer_kernels.grouped_matmul import grouped_matmul
from jaxinfer_kernels.matmul_blocks import MatmulBlocks
from jaxinfer_kernels.quantized_matmul import quantized_matmul
from jaxinfer_kernels.stack import StackLayer

from tests.draws import fixed_and_random_cases
from tests.native import needs_native

from .matmul_cases import (
    SIZES,
    activations,
    codes,
    dequantised,
    grouped_case,
    normal,
    positive,
    wide,
    worst_error,
)

pytestmark = needs_native

F32, BF16, I8, U8 = jnp.float32, jnp.bfloat16, jnp.int8, jnp.uint8


class Kind(NamedTuple):
    """Types of a product; weights of uint8 are packed. group: values that share a scale; None: all of a row. zeros:
    whether there are some."""

    x: Any
    weight: Any
    group: int | None = None
    zeros: bool = False


KINDS = {
    "float32": Kind(F32, F32),
    "bfloat16": Kind(BF16, BF16),
    "float32-bfloat16": Kind(F32, BF16),
    "bfloat16-float32": Kind(BF16, F32),
    "w8-float32": Kind(F32, I8),
    "w8-bfloat16": Kind(BF16, I8),
    "w8a8": Kind(I8, I8),
    "w8-zeros": Kind(F32, I8, None, True),
    "groups-of-16": Kind(F32, I8, 16),
    "groups-of-32-zeros": Kind(F32, I8, 32, True),
    "groups-of-48-zeros-bfloat16": Kind(BF16, I8, 48, True),
    "groups-of-96-bfloat16": Kind(BF16, I8, 96),
    "groups-of-64-zeros-bfloat16": Kind(BF16, I8, 64, True),
    "w4": Kind(F32, U8),
    "w4-bfloat16": Kind(BF16, U8),
    "w4-groups-of-32-zeros": Kind(F32, U8, 32, True),
    "w4-groups-of-32-bfloat16": Kind(BF16, U8, 32),
    "w4-groups-of-64-bfloat16": Kind(BF16, U8, 64),
    "w4-groups-of-64-zeros-bfloat16": Kind(BF16, U8, 64, True),
    "w4-groups-of-16": Kind(F32, U8, 16),
}
KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
ROWS = (1, 2, 5, 6, 7, 15, 16, 17, 60, 61, 130)
"""Of x: tiles have 4 or 6, piles of tiles 40 or 60."""
SHAPES = [(1, 1), (5, 1), (1, 16), (7, 19), (8, 32), (13, 31), (33, 48), (4, 513), (9, 1041), (131, 700), (3, 1500)]
"""N and K: vectors have up to 16 values, or 32 of bfloat16, steps 640 or 1280, pieces 65,536."""
TYPES = {F32: 2e-6, BF16: 2**-8}
"""Of results, with the largest error: sums are in float32, so that only a bfloat16's own rounding is added."""
XLA = {F32: 1e-5, BF16: 2e-2}
"""The same of `xla`, by x's type, to which it rounds weights."""


class Case(NamedTuple):
    x: jax.Array
    weight: jax.Array
    named: dict[str, Any]

    @property
    def matrix(self) -> np.ndarray:
        return dequantised(self.weight, **self.named) if self.named else wide(self.weight)

    @property
    def exact(self) -> np.ndarray:
        return wide(self.x) @ self.matrix.T

    def error(self, found: np.ndarray) -> float:
        """The largest error of a result, relative to the sum of its products' absolute values."""
        assert found.shape == self.exact.shape
        sizes = np.abs(wide(self.x)) @ np.abs(self.matrix).T
        return float(np.nan_to_num(np.abs(wide(found) - self.exact) / np.maximum(sizes, 1e-30), nan=np.inf).max())

    def rows(self, begin: int, count: int) -> "Case":
        return self._replace(x=self.x[begin : begin + count])


def draw(kind: Kind, rows: int, columns: int, depth: int, seed: int = 0) -> Case:
    """Of groups there are several: K is a multiple near `depth`."""
    rng = np.random.default_rng([seed, rows, columns, depth])
    group = kind.group
    unit = max(group or 1, 32 if kind.weight == U8 else 1)
    depth = max(depth // unit, 1 if group is None else 2) * unit
    x = activations(rng, rows, depth, dtype=kind.x)
    if kind.weight not in (I8, U8):
        return Case(x, normal(rng, columns, depth, dtype=kind.weight), {})
    sides = (columns,) if group is None else (columns, depth // group)
    named = {"scales": positive(rng, *sides)} | ({"zeros": normal(rng, *sides) * 3} if kind.zeros else {})
    return Case(x, codes(rng, columns, depth, dtype=kind.weight), named)


def run(case: Case, out_dtype: Any = F32) -> np.ndarray:
    """The product by native kernels, as it came out."""
    return np.asarray(jax.jit(_native, static_argnums=1)(case, jnp.dtype(out_dtype)))


def _native(case: Case, out_dtype: jnp.dtype) -> jax.Array:
    if not case.named:
        return native_product(case.x, case.weight, out_dtype=out_dtype)
    return quantized_matmul(case.x, case.weight, **case.named, out_dtype=out_dtype, backend="native")


def by_xla(case: Case) -> np.ndarray:
    if not case.named:
        return wide(jax.jit(multiply)(case.x, case.weight))
    return wide(jax.jit(lambda case: quantized_matmul(case.x, case.weight, **case.named, out_dtype=F32))(case))


def layer_of(array: jax.Array, index: int, count: int = 3) -> jax.Array:
    """A stack in which all other layers are NaN, or 127."""
    other = jnp.full_like(array, 127 if array.dtype in (I8, U8) else jnp.nan)
    return jnp.stack([array if layer == index else other for layer in range(count)])


@pytest.mark.smoke
@KIND
def test_any_number_of_rows_equals_the_oracle(kind: Kind) -> None:
    for rows in ROWS:
        case = draw(kind, rows, 13, 67)
        assert case.error(run(case)) < TYPES[F32], rows


@pytest.mark.few(22)
@KIND
@pytest.mark.parametrize(("columns", "depth"), SHAPES)
def test_any_shape_equals_the_oracle(columns: int, depth: int, kind: Kind) -> None:
    for rows in (1, 7, 61):
        case = draw(kind, rows, columns, depth)
        for out, allowed in TYPES.items():
            found = run(case, out)
            assert found.dtype == out
            assert case.error(found) < allowed, (rows, out)


@KIND
def test_results_are_near_those_of_xla(kind: Kind) -> None:
    case = draw(kind, 9, 40, 160)
    assert worst_error(wide(run(case)), by_xla(case)) < XLA.get(kind.x, 1e-5)


@pytest.mark.parametrize("weight", [I8, U8])
@pytest.mark.parametrize("group", [352, 512, 544])
def test_groups_about_as_long_as_a_step_equal_the_oracle(group: int, weight: Any) -> None:
    for rows in (1, 61):
        case = draw(Kind(BF16, weight, group, zeros=True), rows, 6, 4 * group)
        assert case.error(run(case)) < TYPES[F32], rows


@pytest.mark.parametrize("seeds", fixed_and_random_cases(4))
def test_random_products(seeds: Iterable[int]) -> None:
    for seed in seeds:
        rng = np.random.default_rng(1000 + seed)
        kind = list(KINDS.values())[rng.integers(len(KINDS))]
        rows, columns = (int(rng.integers(1, 200)) for _ in range(2))
        case = draw(kind, rows, columns, int(rng.integers(1, 1400)), seed)
        out = (F32, BF16)[rng.integers(2)]
        count, index = int(rng.integers(1, 5)), int(rng.integers(0, 100))
        found = _stacked(case, index % count, count, out)
        assert case.error(found) < TYPES[out], (kind, case.x.shape, case.weight.shape, out)


def test_products_of_codes_are_exact() -> None:
    """Of sums that float32 rounds, the nearest."""
    rng = np.random.default_rng(0)
    x, weight = (2 * rng.integers(32, 64, (rows, 4100)) + 1 for rows in (7, 9))
    scales = jnp.full(9, np.float32(1 + 2.0**-20))
    found = run(Case(jnp.asarray(x, I8), jnp.asarray(weight, I8), {"scales": scales}))
    sums = x @ weight.T
    assert sums.min() > 2**24
    np.testing.assert_array_equal(found, sums.astype(np.float32) * np.float32(1 + 2.0**-20))


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_codes_and_bfloat16_are_widened_exactly(dtype: Any) -> None:
    every = jnp.asarray(np.arange(-128, 128)[:, None] * np.ones(17), I8)
    found = run(Case(jnp.eye(17, dtype=dtype), every, {"scales": jnp.ones(256)}))
    np.testing.assert_array_equal(found, np.arange(-128, 128) * np.ones((17, 1)))
    bits = np.arange(2**16, dtype=np.uint16).view(BF16)
    values = bits.astype(np.float32)
    normal = bits[np.isinf(values) | (np.abs(values) >= np.finfo(np.float32).tiny)]
    found = run(Case(jnp.ones((1, 1), dtype), jnp.asarray(normal[:, None]), {}))
    np.testing.assert_array_equal(found[0], normal.astype(np.float32))


def test_results_are_rounded_to_the_nearest_bfloat16() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(3000).astype(np.float32)
    halves = (np.arange(0x3F80, 0x4080, dtype=np.uint32) << 16 | 0x8000).view(np.float32)  # as near to two
    values = np.concatenate([values, halves, np.array([3.4e38, -3.4e38, np.inf, -np.inf, np.nan], np.float32)])
    found = run(Case(jnp.ones((1, 1)), jnp.asarray(values[:, None]), {}), BF16)[0]
    np.testing.assert_array_equal(wide(found), values.astype(BF16).astype(np.float32))


@KIND
def test_rows_have_the_same_bits_wherever_they_are(kind: Kind) -> None:
    """In a tile of any size, first or last, and however many others there are."""
    case = draw(kind, 130, 21, 1400)
    want = run(case)
    for rows in ROWS[:-1]:
        for begin in (0, 1, 130 - rows):
            np.testing.assert_array_equal(run(case.rows(begin, rows)), want[begin : begin + rows])


@KIND
def test_values_have_the_same_bits_wherever_their_row_of_the_matrix_is(kind: Kind) -> None:
    case = draw(kind, 8, 150, 1400)
    want = run(case)
    for begin, count in ((0, 1), (1, 1), (149, 1), (2, 5), (140, 10), (7, 101)):
        of = slice(begin, begin + count)
        sides = {name: side[of] for name, side in case.named.items()}
        np.testing.assert_array_equal(run(Case(case.x, case.weight[of], sides)), want[:, of])


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_change_no_bits(threads: int) -> None:
    def digest(threads: int) -> str:
        command = [sys.executable, "-m", "tests.kernels.native_bits", "products"]
        return subprocess.check_output(command, env=os.environ | {"NPROC": str(threads)}, text=True)

    assert digest(1) == digest(threads)


def _stacked(case: Case, index: int, count: int, out_dtype: Any = F32) -> np.ndarray:
    parts = [case.weight, case.named.get("scales"), case.named.get("zeros")]
    stacks = [None if part is None else layer_of(part, index, count) for part in parts]

    @jax.jit
    def call(x: jax.Array, stacks: Any, index: jax.Array) -> jax.Array:
        sides = [None if stack is None else StackLayer(stack, index) for stack in stacks[1:]]
        weight, (scales, zeros) = StackLayer(stacks[0], index), sides
        if scales is None:
            return native_product(x, weight, out_dtype=jnp.dtype(out_dtype))
        return quantized_matmul(x, weight, scales, zeros=zeros, out_dtype=out_dtype, backend="native")

    return np.asarray(call(case.x, stacks, jnp.int32(index)))


@KIND
def test_a_layer_is_read_where_it_lies(kind: Kind) -> None:
    for rows in (1, 9):
        case = draw(kind, rows, 11, 35)
        for index in range(3):
            np.testing.assert_array_equal(_stacked(case, index, 3), run(case))


@pytest.mark.parametrize("index", [-1, 2])
def test_a_layer_that_is_not_there(index: int) -> None:
    with pytest.raises(RuntimeError, match=f"there is no layer {index}"):
        jax.block_until_ready(
            native_product(jnp.ones((1, 4)), StackLayer(jnp.ones((2, 3, 4)), jnp.int32(index)), out_dtype=F32)
        )


MORE = SIZES | {
    "many-of-no-group": [1, 0, 0],
    "too-many": [30, 40, 7],
    "first-too-many": [70, 2, 9],
    "all-of-the-last": [0, 0, 50],
}


def experts(kind: Kind, sizes: list[int], out_dtype: Any, index: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """A result of 50 rows by native kernels, and what it should be. What sizes exceed 50 by is cut off."""
    cut = np.diff(np.minimum(np.cumsum([0, *sizes]), 50)).tolist()
    x, weights, named, exact = grouped_case(cut, 50, (13, 96), kind.x, kind.weight, kind.group, kind.zeros)

    @jax.jit
    def call(x: jax.Array, weights: Any, sizes: jax.Array, named: dict[str, Any], at: jax.Array) -> jax.Array:
        if index is not None:
            weights, named = jax.tree.map(lambda stack: StackLayer(stack, at), (weights, named))
        return grouped_matmul(x, weights, sizes, **named, out_dtype=out_dtype, backend="native")

    if index is not None:
        weights, named = jax.tree.map(lambda array: layer_of(array, index), (weights, named))
    at = jnp.int32(0 if index is None else index)
    return np.asarray(call(x, weights, jnp.asarray(sizes, jnp.int32), named, at)), exact


@KIND
@pytest.mark.parametrize("sizes", MORE.values(), ids=MORE)
def test_experts_equal_the_oracle(sizes: list[int], kind: Kind) -> None:
    for out, allowed in TYPES.items():
        found, exact = experts(kind, sizes, out)
        assert found.dtype == out
        assert worst_error(wide(found), exact) < max(allowed, 1e-5)
        assert not found[min(sum(sizes), 50) :].any()


@KIND
@pytest.mark.parametrize("index", [0, 2])
def test_experts_of_a_layer_are_read_where_they_lie(index: int, kind: Kind) -> None:
    sizes = MORE["ragged"]
    np.testing.assert_array_equal(experts(kind, sizes, F32, index)[0], experts(kind, sizes, F32)[0])


@KIND
def test_an_expert_gives_the_bits_of_its_matrix_alone(kind: Kind) -> None:
    case = draw(kind, 24, 9, 96)
    sizes = jnp.asarray([3, 0, 20, 1], jnp.int32)
    each = jax.tree.map(lambda array: jnp.stack([array] * 4), (case.weight, case.named))
    found = grouped_matmul(case.x, each[0], sizes, **each[1], out_dtype=F32, backend="native")
    np.testing.assert_array_equal(found, run(case))


FLOATS = [name for name, kind in KINDS.items() if kind.x != I8]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FLOATS)
def test_what_is_not_finite_in_x_reaches_its_row_alone(name: str, value: float) -> None:
    case = draw(KINDS[name], 14, 10, 67)
    want, depth = run(case), case.x.shape[1]
    for row, column in ((0, 0), (13, depth - 1), (7, depth // 2)):
        changed = case._replace(x=case.x.at[row, column].set(value))
        found, others = run(changed), np.arange(14) != row
        np.testing.assert_array_equal(found[others], want[others])
        if KINDS[name].group is None and not KINDS[name].zeros:  # a weight that is 0 but for rounding may not be
            np.testing.assert_array_equal(found[row], changed.exact[row].astype(np.float32))
        else:
            assert not np.isfinite(found[row]).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FLOATS)
def test_what_is_not_finite_in_a_weight_reaches_its_column_alone(name: str, value: float) -> None:
    """Or in a scale, or in a zero."""
    case = draw(KINDS[name], 14, 10, 67)
    want = run(case)
    for part in case.named or ("weight",):
        held = case.named.get(part, case.weight)
        for column, at in ((0, 0), (9, -1), (4, held.shape[-1] // 2 if held.ndim > 1 else 0)):
            changed = held.at[(column, at) if held.ndim > 1 else column].set(value)
            wrong = case._replace(named=case.named | {part: changed}) if case.named else case._replace(weight=changed)
            found, others = run(wrong), np.arange(10) != column
            np.testing.assert_array_equal(found[:, others], want[:, others])
            if part == "weight":
                np.testing.assert_array_equal(found[:, column], wrong.exact[:, column].astype(np.float32))
            else:
                assert not np.isfinite(found[:, column]).any()


X, W, CODES, SCALES = jnp.ones((2, 32)), jnp.ones((3, 32)), jnp.ones((3, 32), I8), jnp.ones(3)


@pytest.mark.parametrize(
    ("x", "weights", "named", "message"),
    [
        (X.astype(jnp.float16), W, {}, "native takes x in .*, not float16, float32 and float32"),
        (X, W.astype(jnp.float16), {}, "native takes x in .*, not float32, float16 and float32"),
        (X, W.astype(jnp.int4), {"scales": SCALES}, "native takes x in .*, not float32, int4"),
        (X, W, {"out_dtype": jnp.dtype("float16")}, "gives float32 and bfloat16, not float32, float32 and float16"),
        (X, W, {"out_dtype": jnp.dtype("int32")}, "gives float32 and bfloat16, not float32, float32 and int32"),
        (X, CODES, {}, "native takes scales with codes alone"),
        (X, W, {"scales": SCALES}, "native takes scales with codes alone"),
        (X.astype(I8), W, {}, "x of int8 with int8, not float32"),
        (X, CODES, {"scales": jnp.ones((3, 4))}, "native takes groups that are multiples of 16, not 8"),
    ],
)
def test_wrong_types_and_groups(x: jax.Array, weights: jax.Array, named: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"out_dtype": jnp.dtype(F32)} | named
    with pytest.raises(ValueError, match=message):
        native_product(x, weights, **given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X.astype(jnp.float16)}, "x in float16 is for xla alone, not for native"),
        (
            {"weight": jnp.ones((3, 32), jnp.float8_e4m3fn)},
            "native takes x in .*, not float32, float8_e4m3fn",
        ),
        ({"weight": jnp.ones((3, 31), I8)}, r"weight must be \[N, 32\]"),
        ({"scales": jnp.ones((3, 5))}, "scales must be"),
        ({"zeros": jnp.ones(4)}, "zeros must be"),
        ({"block_sizes": MatmulBlocks(16, 128)}, "block_sizes belong to mosaic_tpu and mosaic_gpu; native takes none"),
    ],
    ids=str,
)
def test_wrong_arguments(change: dict[str, Any], message: str) -> None:
    given = {"x": X, "weight": CODES, "scales": SCALES, "backend": "native"} | change
    with pytest.raises(ValueError, match=message):
        quantized_matmul(**given)
