"""Which backend multiplies quantised matrices, from made-up timings; and an engine over a TPU's kernel."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxinfer_kernels.tpu import quantized_matmul as tpu_kernel

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.layers.stack import Layout
from jaxinfer.models.loaded import LoadedModel, random_model
from jaxinfer.quantization.array import MatrixShape, QuantizedArray
from jaxinfer.quantization.product import quantized_product
from jaxinfer.quantization.scheme import Scheme, TableSchemes
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.programs.key import program_key
from jaxinfer.runner.tuning import kernel_backends, products
from jaxinfer.runner.tuning.products import check_product, choose_products, matrix_shapes, time_product
from tests.native import needs_native
from tests.runner.tiny import drive, greedy, make_core, tiny_model, tiny_shapes
from tests.turns import one_of


def quantised_model(name: str = "int8", layout: Layout = "unrolled") -> LoadedModel:
    plain = tiny_model()
    return random_model(plain.config.quantised(name), dtype=jnp.dtype("float32"), layout=layout)


def choose(model: LoadedModel, asked: Any = "auto", cache: Path | None = None) -> dict[MatrixShape, str]:
    return dict(choose_products(model, tiny_shapes(model), asked, cache).product_backends)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[MatrixShape, str, int]]:
    """The device is taken for a TPU whose kernel is faster for matrices of more than 32 columns. What was timed."""
    seen: list[tuple[MatrixShape, str, int]] = []

    def seconds(matrix: MatrixShape, backend: str, rows: int, dtype: jnp.dtype) -> float:
        seen.append((matrix, backend, rows))
        return 2.0 if (backend == "xla") == (matrix.columns > 32) else 1.0

    monkeypatch.setattr(kernel_backends, "platform_of", lambda mesh: "tpu")
    monkeypatch.setattr(products, "obstacle", lambda *_: None)
    monkeypatch.setattr(products, "interpreted", lambda *_: False)
    monkeypatch.setattr(products, "check_product", lambda *_: None)
    monkeypatch.setattr(products, "time_product", seconds)
    return seen


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "layout"), [("int8", "unrolled"), ("int8", "stacked"), ("int8-w8a8", "unrolled"), ("fp8-w8a8", "unrolled")]
)
def test_each_shape_has_the_fastest_and_it_is_remembered(
    timed: list[tuple[MatrixShape, str, int]], tmp_path: Path, name: str, layout: Layout
) -> None:
    model = quantised_model(name, layout)
    found = choose(model, cache=tmp_path)
    assert {matrix.columns: backend for matrix, backend in found.items()} == {32: "xla", 64: "mosaic_tpu"}
    count = len(timed)
    assert choose(model, cache=tmp_path) == found
    assert len(timed) == count == 4 * len(found)


def test_the_head_is_timed_with_scored_positions(timed: list[tuple[MatrixShape, str, int]]) -> None:
    model = quantised_model()
    choose_products(model, tiny_shapes(model, max_scored=16), "auto", None)
    rows: dict[MatrixShape, set[int]] = {}
    for matrix, _, count in timed:
        rows.setdefault(matrix, set()).add(count)
    assert rows.pop(MatrixShape(*model.config.table_shape, Scheme("int8"))) == {8, 16}
    assert set(map(frozenset, rows.values())) == {frozenset({8, 64})}


@pytest.mark.parametrize("tied", [False, True])
def test_an_embedding_has_a_product_where_it_is_the_head(tied: bool) -> None:
    model = quantised_model()
    config = replace(model.config, tables=TableSchemes(embed=Scheme("int8")), tie_word_embeddings=tied)
    table = MatrixShape(*config.table_shape, Scheme("int8"))
    assert (table in matrix_shapes(replace(model, config=config))) == tied


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("wrong_rows", [8, 64], ids=["decode", "prefill"])
def test_a_kernel_that_is_wrong_is_passed_over(monkeypatch: pytest.MonkeyPatch, wrong_rows: int) -> None:
    def wrong(matrix: MatrixShape, backend: str, rows: int, dtype: jnp.dtype) -> None:
        if rows == wrong_rows:
            raise ValueError("its results differ")

    monkeypatch.setattr(products, "check_product", wrong)
    assert set(choose(quantised_model()).values()) == {"xla"}


@needs_native
@pytest.mark.parametrize("name", ["none", "int8", "int4", "int8-w8a8", "fp8", "fp8-w8a8"])
@pytest.mark.parametrize("asked", ["auto", "native"])
def test_a_cpu_multiplies_natively_without_timing_what_it_can(
    name: str, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fp8 only embedding and head, which are int8."""
    monkeypatch.setattr(products, "time_product", None)
    model = quantised_model(name)
    found = choose_products(model, tiny_shapes(model), asked, None)
    taken = [matrix for matrix in matrix_shapes(model) if matrix.scheme.codes in ("int8", "int4")]
    assert dict(found.product_backends) == dict.fromkeys(taken, "native")
    assert len(taken) == {"none": 0, "fp8": 1, "fp8-w8a8": 1}.get(name, len(matrix_shapes(model)))
    assert found.plain_backend == "native"
    assert choose_products(model, tiny_shapes(model), "xla", None) == model
    for matrix in taken:
        check_product(matrix, "native", 5, model.dtype)


def test_a_cpu_without_native_kernels_multiplies_by_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "time_product", None)
    monkeypatch.setattr(kernel_backends, "unavailable", lambda _: "not built")
    for model in (tiny_model(), quantised_model()):
        assert choose_products(model, tiny_shapes(model), "auto", None) == model


def test_a_model_of_float16_is_multiplied_by_xla() -> None:
    model = replace(quantised_model(), dtype=jnp.dtype("float16"))
    assert choose_products(model, tiny_shapes(model), "auto", None) == model


def test_a_tpu_kernel_that_is_asked_for_on_a_cpu_leaves_nothing_to_native() -> None:
    model = quantised_model("int4")
    found = choose_products(model, tiny_shapes(model), "mosaic_tpu", None)
    assert set(dict(found.product_backends).values()) == {"mosaic_tpu"}
    assert found.plain_backend == "xla"


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, ...]]:
    """The shapes of weights that the kernel for TPUs was traced with."""
    seen, kernel = set(), tpu_kernel.quantized_matmul_tpu

    def traced(x: jax.Array, weight: jax.Array, *rest: Any) -> jax.Array:
        seen.add(weight.shape)
        return kernel(x, weight, *rest)

    monkeypatch.setattr(tpu_kernel, "quantized_matmul_tpu", traced)
    return seen


@pytest.mark.long
@pytest.mark.parametrize("name", one_of(4, ["int4", "int8", "int8-w8a8", "fp8-w8a8"]))
def test_an_engine_over_the_kernel_for_tpus_gives_the_tokens_of_xla(
    multiplied: set[tuple[int, ...]], name: str
) -> None:
    """It does not take two groups of 32: that matrix stays with xla."""
    model, requests = quantised_model(name), [GenerateRequest("a", [5, 6, 7, 8, 9], greedy(6))]
    shapes = tiny_shapes(model, max_num_seqs=1, max_num_batched_tokens=8)
    tpu = choose_products(model, shapes, "mosaic_tpu", None)
    of_name = model.config.layers[0].schemes.qkv
    taken = {matrix.columns for matrix, _ in tpu.product_backends if matrix.scheme == of_name}
    assert taken == ({32} if name == "int4" else {32, 64})
    keys, tokens = set(), []
    for one in (model, tpu):
        multiplied.clear()
        runner = JaxRunner(one, shapes)
        runner.warm_up(when="lazy")
        tokens.append(drive(make_core(runner), requests)["a", 0].tokens)
        keys.add(program_key(one, shapes, {}))
        assert multiplied == {(matrix.rows, matrix.columns) for matrix, _ in one.product_backends}
    assert tokens[0] == tokens[1]
    assert len(keys) == 2


def test_a_wrong_product_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = MatrixShape(64, 128, Scheme("int4", group=32))

    def product(x: jax.Array, weight: QuantizedArray) -> jax.Array:
        off = 1.01 if weight.backend == "mosaic_tpu" else 1.0
        return off * quantized_product(x, replace(weight, backend="xla"))

    monkeypatch.setattr(products, "quantized_product", product)
    check_product(matrix, "xla", 4, jnp.dtype("float32"))
    with pytest.raises(ValueError, match=r"differ from xla's by 0\.01"):
        check_product(matrix, "mosaic_tpu", 4, jnp.dtype("float32"))


@pytest.mark.parametrize(
    ("scheme", "part", "axis"),
    [
        (Scheme("int4", group=32, zeros=True), "scales", 1),
        (Scheme("int4", group=32, zeros=True), "zeros", 1),
        (Scheme("int8"), "scales", 0),
        (Scheme("e2m1", group=32, scales="e8m0"), "scales", 1),
        (Scheme("e2m1", group=16, scales="e4m3", factors=True), "scales", 1),
        (Scheme("e2m1", group=16, scales="e4m3", factors=True), "factors", None),
    ],
    ids=str,
)
def test_a_product_with_wrong_sides_is_found(
    monkeypatch: pytest.MonkeyPatch, scheme: Scheme, part: str, axis: int | None
) -> None:
    """The next group's or row's scales or zeros, or no factors; axis: None drops the part."""
    matrix, dtype = MatrixShape(64, 128, scheme), jnp.dtype("bfloat16")

    def product(x: jax.Array, weight: QuantizedArray) -> jax.Array:
        right = getattr(weight, part)
        wrong = jnp.ones_like(right) if axis is None else jnp.roll(right, 1, axis)
        changes = {part: wrong} if weight.backend == "mosaic_tpu" else {}
        return quantized_product(x, replace(weight, backend="xla", **changes))

    monkeypatch.setattr(products, "quantized_product", product)
    check_product(matrix, "xla", 4, dtype)
    with pytest.raises(ValueError, match="differ from xla's"):
        check_product(matrix, "mosaic_tpu", 4, dtype)


def test_products_are_timed() -> None:
    assert time_product(MatrixShape(64, 128, Scheme("int4", group=32)), "xla", 4, jnp.dtype("float32")) > 0
    assert matrix_shapes(tiny_model()) == []
