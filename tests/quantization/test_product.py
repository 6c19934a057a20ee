"""Products with quantised weights of every part that a scheme may have."""

from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.quantization.array import CODE_TYPES, QuantizedArray, quantise, quantise_rows
from jaxinfer.quantization.product import quantized_grouped_product, quantized_product
from jaxinfer.quantization.scheme import Scheme
from tests.kernels.matmul_cases import codes, dequantised, normal, positive, wide

Form = Literal["int8", "e4m3"]
FORMS: tuple[Form, ...] = "int8", "e4m3"
EXPERTS, COLUMNS, DEPTH, GROUP = 3, 16, 64, 32


def drawn(rng: np.random.Generator, *lead: int) -> QuantizedArray:
    """int4 in groups with zeros, as AWQ and GPTQ have them."""
    sides = (*lead, COLUMNS, DEPTH // GROUP)
    held = codes(rng, *lead, COLUMNS, DEPTH, dtype=jnp.int4)
    return QuantizedArray(Scheme("int4", GROUP, True), held, positive(rng, *sides), normal(rng, *sides) * 3)


def rounded(rng: np.random.Generator, form: Form, *lead: int) -> QuantizedArray:
    """Weights whose activations are rounded to their type."""
    held = codes(rng, *lead, COLUMNS, DEPTH, dtype=CODE_TYPES[form].type)
    return QuantizedArray(Scheme(form, activations=form), held, positive(rng, *lead, COLUMNS, 1))


def values_of_rows(x: jax.Array, form: Form) -> np.ndarray:
    """x as its codes and scales have it."""
    rows, scales = quantise_rows(x, form)
    return wide(rows) * wide(scales)


def exact(weight: QuantizedArray) -> np.ndarray:
    return dequantised(weight.codes, weight.scales, weight.zeros)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_zeros_count_in_a_product(rng: np.random.Generator):
    x, weight = normal(rng, 5, DEPTH), drawn(rng)
    np.testing.assert_allclose(jax.jit(quantized_product)(x, weight), wide(x) @ exact(weight).T, rtol=1e-4, atol=1e-4)


def test_zeros_count_in_a_product_of_experts(rng: np.random.Generator):
    x, weights, sizes = normal(rng, 6, DEPTH), drawn(rng, EXPERTS), np.array([2, 0, 4], np.int32)
    product = jax.jit(quantized_grouped_product, static_argnums=3)(x, weights, sizes, "xla")
    of_rows = exact(weights)[np.repeat(np.arange(EXPERTS), sizes)]
    np.testing.assert_allclose(product, np.einsum("tk,tnk->tn", wide(x), of_rows), rtol=1e-4, atol=1e-4)


def ordered(rng: np.random.Generator, weight: QuantizedArray) -> QuantizedArray:
    """Its columns lie in an order, of each expert another."""
    order = rng.permuted(np.broadcast_to(np.arange(DEPTH, dtype=np.int32), (*weight.shape[:-2], DEPTH)), axis=-1)
    return replace(weight, scheme=replace(weight.scheme, ordered=True), order=jnp.asarray(order))


def test_x_is_gathered_in_the_order_of_columns(rng: np.random.Generator):
    x, weight = normal(rng, 5, DEPTH), ordered(rng, drawn(rng))
    assert weight.order is not None
    values = np.empty((COLUMNS, DEPTH))
    values[:, weight.order] = exact(weight)
    np.testing.assert_allclose(jax.jit(quantized_product)(x, weight), wide(x) @ values.T, rtol=1e-4, atol=1e-4)


def test_x_is_gathered_in_the_order_of_each_expert(rng: np.random.Generator):
    """The last row is no expert's."""
    x, weights, sizes = normal(rng, 7, DEPTH), ordered(rng, drawn(rng, EXPERTS)), np.array([2, 0, 4], np.int32)
    assert weights.order is not None
    values = np.empty((EXPERTS, COLUMNS, DEPTH))
    for expert, order in enumerate(weights.order):
        values[expert][:, order] = exact(weights)[expert]
    product = jax.jit(quantized_grouped_product, static_argnums=3)(x, weights, sizes, "xla")
    of_rows = values[np.repeat(np.arange(EXPERTS), sizes)]
    np.testing.assert_allclose(product[:6], np.einsum("tk,tnk->tn", wide(x)[:6], of_rows), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(product[6:], 0)


def factored(rng: np.random.Generator, *lead: int) -> QuantizedArray:
    """e2m1 with e4m3 scales and a factor a row, as NVFP4 has them."""
    scheme = Scheme("e2m1", 16, scales="e4m3", factors=True)
    held = rng.integers(-6, 7, (*lead, COLUMNS, DEPTH)).astype("f4")
    scales = rng.uniform(50, 400, (*lead, COLUMNS, DEPTH // 16)).astype("f4")
    parts = [jnp.asarray(held, jnp.float8_e4m3fn), jnp.asarray(scales, jnp.float8_e4m3fn)]
    return QuantizedArray(scheme, *parts, factors=jnp.asarray(rng.uniform(1, 2, (*lead, COLUMNS, 1)) / 2000, "f4"))


def exact_factored(weight: QuantizedArray) -> np.ndarray:
    assert weight.factors is not None
    return dequantised(weight.codes, weight.scales) * wide(weight.factors)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_have_a_factor_a_row(rng: np.random.Generator, dtype: str):
    """With x in bfloat16 values are not rounded: codes times scales have six bits at most."""
    x, weight = normal(rng, 5, DEPTH).astype(dtype), factored(rng)
    np.testing.assert_allclose(
        jax.jit(quantized_product)(x, weight), wide(x) @ exact_factored(weight).T, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-5), ("bfloat16", 2.0**-8)])
def test_sums_of_experts_have_a_factor_a_row(rng: np.random.Generator, dtype: str, most: float):
    """The last row is no expert's."""
    x, weights = normal(rng, 7, DEPTH).astype(dtype), factored(rng, EXPERTS)
    sizes = np.array([2, 0, 4], np.int32)
    product = jax.jit(quantized_grouped_product, static_argnums=3)(x, weights, sizes, "xla")
    of_rows = exact_factored(weights)[np.repeat(np.arange(EXPERTS), sizes)]
    wanted = np.einsum("tk,tnk->tn", wide(x)[:6], of_rows)
    np.testing.assert_allclose(product[:6].astype("f4"), wanted, rtol=most, atol=1e-5)
    np.testing.assert_array_equal(product[6:], 0)


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 2.0**-23), ("bfloat16", 2.0**-15), ("float16", 2.0**-23)])
@pytest.mark.parametrize("rows", [1, 3])
def test_int8_weights_on_a_cpu_lose_nothing_of_x(rng: np.random.Generator, rows: int, dtype: str, rounding: float):
    """A CPU multiplies integers alone, of x cut in pieces. Of weights with one code a row every result is a value of x:
    what is left of it is below `rounding` of its row's largest one. Some rests are just half a step."""
    weight = QuantizedArray(Scheme("int8"), jnp.eye(DEPTH, dtype=jnp.int8) * 127, jnp.ones((DEPTH, 1), jnp.float32))
    values = rng.normal(size=(rows, DEPTH)) * 10.0 ** rng.integers(-3, 3, (rows, 1))
    values[0] = [127, *np.arange(DEPTH // 2 - 1) + 0.5, *rng.uniform(-127, 127, DEPTH // 2)]
    x = jnp.asarray(values, dtype)
    left = np.abs(jax.jit(quantized_product)(x, weight) / 127 - wide(x))
    assert (left <= (rounding + 2.0**-23) * np.abs(wide(x)).max(axis=1, keepdims=True)).all()


@pytest.mark.parametrize(
    "scheme", [Scheme("int8"), Scheme("e4m3"), Scheme("int4", GROUP), Scheme("int8", GROUP)], ids=str
)
def test_activations_may_be_float16(rng: np.random.Generator, scheme: Scheme):
    x = normal(rng, 3, DEPTH).astype(jnp.float16)
    codes, scales = quantise(jnp.asarray(rng.normal(size=(EXPERTS, COLUMNS, DEPTH)), jnp.float32), scheme)
    weights, sizes = QuantizedArray(scheme, codes, scales), np.array([3, 0, 0], np.int32)
    of_first = jax.tree.map(lambda part: part[0], weights)
    want = wide(x) @ dequantised(of_first.codes, of_first.scales).T
    found = (
        jax.jit(quantized_product)(x, of_first),
        jax.jit(quantized_grouped_product, static_argnums=3)(x, weights, sizes, "xla"),
    )
    for got in found:
        np.testing.assert_allclose(wide(got), want, atol=2e-2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("largest", [1e-36, 1e-37, 2e-38])
def test_rows_with_tiny_values_are_not_nan(form: Form, largest: float):
    """Their scale is too small for float32."""
    codes, scales = jax.jit(quantise_rows, static_argnums=1)(jnp.array([[largest, 0.0]], jnp.float32), form)
    assert np.isfinite(wide(codes) * wide(scales)).all()
    assert (wide(scales) > 0).all()


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_no_expert_are_0_whatever_they_hold(rng: np.random.Generator, form: Form):
    x, weights, sizes = normal(rng, 4, DEPTH).at[3].set(jnp.nan), rounded(rng, form, EXPERTS), np.array([2, 0, 1])
    product = jax.jit(quantized_grouped_product, static_argnums=3)(x, weights, sizes.astype(np.int32), "xla")
    assert np.isfinite(product).all()
    assert not product[3].any()


@pytest.mark.parametrize("form", FORMS)
def test_a_product_of_codes(rng: np.random.Generator, form: Form):
    x, weight = normal(rng, 5, DEPTH), rounded(rng, form)
    expected = values_of_rows(x, form) @ exact(weight).T
    np.testing.assert_allclose(jax.jit(quantized_product)(x, weight), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_a_product_of_codes_of_experts(rng: np.random.Generator, form: Form):
    """In bfloat16 only the result is rounded: products are of codes."""
    x, weights, sizes = normal(rng, 6, DEPTH, dtype=jnp.bfloat16), rounded(rng, form, EXPERTS), np.array([2, 0, 4])
    product = jax.jit(quantized_grouped_product, static_argnums=3)(x, weights, sizes.astype(np.int32), "xla")
    of_rows = exact(weights)[np.repeat(np.arange(EXPERTS), sizes)]
    expected = np.einsum("tk,tnk->tn", values_of_rows(x, form), of_rows)
    assert product.dtype == jnp.bfloat16
    np.testing.assert_allclose(wide(product), expected, rtol=2**-8, atol=1e-6)
