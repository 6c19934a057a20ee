"""Chains of `grouped_matmul` and `quantized_matmul`: up and down through an MLP, each product on the one before."""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxinfer_kernels.grouped_matmul import grouped_matmul
from jaxinfer_kernels.quantized_matmul import quantized_matmul

from benchmarks.kernel_bench.cases import MatmulCase
from benchmarks.kernel_bench.checks import check_close, poison
from benchmarks.kernel_bench.counts import group_sizes
from benchmarks.kernel_bench.timing import Chain
from jaxinfer.quantization.array import quantise_rows

_UNROLLED = 4
_CHECKED = 1000
"""A seed that no layer has."""

_STORED = {"int4": jnp.int4, "int8": jnp.int8, "e4m3": jnp.float8_e4m3fn, "e2m1": jnp.float4_e2m1fn}
_MOST = {"int4": 8, "int8": 128, "e4m3": 16, "e2m1": 4}
"""Codes are whole numbers below it, and at least its opposite; up to 16 e4m3 holds every one, up to 4 e2m1."""

Weights = dict[str, jax.Array]


def matmul_chain(case: MatmulCase, backend: str, calls: int, dtype: str) -> Chain:
    """Four MLPs with weights of their own in one program, dispatched again and again.

    Unrolled, not a loop: out of a loop XLA could move what it does to the weights alone. Raises ValueError where the
    backend's products are wrong.
    """
    kind = jnp.dtype(dtype)
    check_product(case, backend, kind)
    layers = [_layer(case, kind, seed) for seed in range(_UNROLLED)]
    x = jax.random.normal(jax.random.key(0), (case.tokens * case.chosen, case.hidden), kind)
    sizes = group_sizes(case) if case.experts else None
    rounds, product = -(-calls // _UNROLLED), partial(_product, backend=backend, rounded=case.rounded)

    @jax.jit
    def forward(x: jax.Array, layers: list[tuple[Weights, Weights]], sizes: jax.Array | None) -> jax.Array:
        for up, down in layers:
            x = product(product(x, up, sizes), down, sizes)
        return x

    given = None if sizes is None else jnp.asarray(sizes)  # an argument: what is made of a constant, XLA computes once

    def run(x: jax.Array) -> jax.Array:
        for _ in range(rounds):
            x = forward(x, layers, given)
        return jax.block_until_ready(x)

    return Chain(run, x, rounds * _UNROLLED)


def check_product(case: MatmulCase, backend: str, dtype: jnp.dtype) -> None:
    """Raises ValueError where one product of the backend is not that of plain JAX in float32, on inputs drawn anew.

    `xla` is what others are compared with.
    """
    if backend == "xla":
        return
    side = _layer(case, dtype, _CHECKED)[0]
    sizes = jnp.asarray(group_sizes(case)) if case.experts else None
    x = jax.random.normal(jax.random.key(_CHECKED), (case.tokens * case.chosen, case.hidden), dtype)
    ours, plain = (jax.jit(partial(_product, backend=name, rounded=case.rounded)) for name in (backend, "xla"))
    expected = plain(x.astype(jnp.float32), side, sizes)
    poison(expected.shape, dtype)
    check_close("products", backend, ours(x, side, sizes), expected)


def _product(x: jax.Array, side: Weights, sizes: jax.Array | None, backend: str, rounded: bool) -> jax.Array:
    """rounded: x is rounded to the weights' type, and its scales are applied to the result, as the engine does it."""
    if not rounded:
        return _multiplied(x, side, sizes, backend)
    form: Literal["int8", "e4m3"] = "int8" if side["weight"].dtype == jnp.int8 else "e4m3"
    rows, of_rows = quantise_rows(x, form)
    return (_multiplied(rows, side, sizes, backend) * of_rows).astype(x.dtype)


def _multiplied(x: jax.Array, side: Weights, sizes: jax.Array | None, backend: str) -> jax.Array:
    if sizes is None:
        return quantized_matmul(x, side["weight"], side["scales"], backend=backend)
    return grouped_matmul(x, side["weight"], sizes, scales=side.get("scales"), backend=backend)


def _layer(case: MatmulCase, dtype: jnp.dtype, seed: int) -> tuple[Weights, Weights]:
    up, down = jax.random.split(jax.random.key(seed))
    make = partial(_side, case=case, dtype=dtype)
    return make(up, rows=case.inner, columns=case.hidden), make(down, rows=case.hidden, columns=case.inner)


def _side(key: Any, rows: int, columns: int, *, case: MatmulCase, dtype: jnp.dtype) -> Weights:
    """[rows, columns] weights, for each expert, that leave the size of values as it is."""
    shape = (case.experts, rows, columns) if case.experts else (rows, columns)
    if case.weights == "plain":
        return {"weight": jax.random.normal(key, shape, dtype) * jnp.asarray(columns**-0.5, dtype)}
    most = _MOST[case.weights]
    drawn = jax.random.randint(key, shape, -most, most, jnp.int8)
    spread = (4 * most**2 / 12) ** 0.5
    groups = () if case.group is None else (columns // case.group,)
    scales = jnp.full((*shape[:-1], *groups), columns**-0.5 / spread, jnp.float32).astype(case.scales)
    return {"weight": drawn.astype(_STORED[case.weights]), "scales": scales}
