"""Choice of the backend for each quantised matrix: those that the device can run are timed on matrices of that
shape."""

import hashlib
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.config import AttentionBackend
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.models.weight import Weight
from jaxinfer.quantization.array import (
    SCALE_TYPES,
    MatrixShape,
    QuantizedArray,
    as_held,
    four_bits,
    part_form,
    powers_above,
)
from jaxinfer.quantization.product import quantized_product
from jaxinfer.quantization.scheme import Part
from jaxinfer.runner.platform.autotune_cache import shapes_digest
from jaxinfer.runner.tuning.backend_choice import remembered_choice
from jaxinfer.runner.tuning.kernel_backends import candidates, interpreted, obstacle

_RUNS = 5
_TIMED_BYTES = 256 << 20
"""Bytes of the matrices that one call multiplies with: no cache of a device holds as much."""
_MOST_MATRICES = 16
_ERROR = {"float32": 1e-3}
"""Largest difference from xla's results, as a share of the largest; of other types, 2e-2."""


def choose_products(
    model: LoadedModel, shapes: EngineShapes, asked: AttentionBackend, cache: Path | None
) -> LoadedModel:
    """The model with a backend for each shape of its quantised matrices but experts', if it has any, and on a CPU for
    all others. asked: the attention backend. cache: where choices are remembered.

    Where `xla` is asked for, it multiplies too, and so does an interpreted kernel where it takes the shape; otherwise
    the fastest does.
    """
    if asked == "xla":
        return model
    if interpreted(asked, model.mesh):
        return with_products(model, asked)
    able, matrices = candidates(model.mesh, model.dtype), matrix_shapes(model)
    if able == ("native",):
        return replace(with_products(model, "native"), plain_backend="native")
    if not matrices or len(able) == 1:
        return model
    chosen = []
    for matrix in matrices:
        digest = hashlib.sha256(repr(matrix).encode()).hexdigest()
        file = cache / f"product-{shapes_digest(model, shapes, digest, *able)}.json" if cache else None
        measure = partial(_measured, model, shapes, matrix)
        chosen.append((matrix, remembered_choice(f"product {_named(matrix)}", file, able, measure)))
    return replace(model, product_backends=tuple(chosen))


def with_products(model: LoadedModel, backend: str) -> LoadedModel:
    """The model with this backend for each shape of its quantised matrices that it takes."""
    taken = [matrix for matrix in matrix_shapes(model) if _takes(matrix, backend, model.dtype)]
    return replace(model, product_backends=tuple((matrix, backend) for matrix in taken))


def matrix_shapes(model: LoadedModel) -> list[MatrixShape]:
    """The shapes of matrices whose products a backend may be chosen for, one device's part of each."""
    plan = model.plan
    return list(dict.fromkeys(filter(None, (*(_matrix_shape(model, one) for one in plan.weights), model.head_matrix))))


def _matrix_shape(model: LoadedModel, weight: Weight) -> MatrixShape | None:
    """None for a weight whose products are not of one matrix; of the embedding only rows are read, but as the head."""
    if weight.scheme is None or "expert" in weight.axes or weight.path == ("embed",):
        return None
    return model.device_matrix(weight.shape, weight.axes, weight.scheme)


def _named(matrix: MatrixShape) -> str:
    return f"{matrix.rows} x {matrix.columns} in {matrix.scheme}"


def _measured(model: LoadedModel, shapes: EngineShapes, matrix: MatrixShape, backend: str) -> tuple[float, float]:
    """Seconds of a product in a decode step and in a prefill, of which the head sees scored positions alone."""
    if reason := obstacle(backend, model.mesh):
        raise NotImplementedError(reason)
    most = shapes.max_scored if matrix == model.head_matrix else shapes.max_num_batched_tokens
    counts = (shapes.max_num_seqs, most)
    for rows in counts if backend != "xla" else ():  # a kernel may scale few rows late and many early
        check_product(matrix, backend, rows, model.dtype)
    decode, prefill = (time_product(matrix, backend, rows, model.dtype) for rows in counts)
    return decode, prefill


def _takes(matrix: MatrixShape, backend: str, dtype: jnp.dtype) -> bool:
    x = jax.ShapeDtypeStruct((1, matrix.columns), dtype)
    try:
        jax.eval_shape(quantized_product, x, jax.eval_shape(partial(_random, matrix, backend, 0)))
    except ValueError:
        return False
    return True


def check_product(matrix: MatrixShape, backend: str, rows: int, dtype: jnp.dtype) -> None:
    """A product of random rows by a backend and by `xla`. Raises ValueError where results differ."""
    x = _rows(matrix, rows, dtype)
    out, want = (
        np.asarray(jax.jit(quantized_product)(x, _random(matrix, name, 0)), np.float32) for name in (backend, "xla")
    )
    error, allowed = np.abs(out - want).max() / np.abs(want).max(), _ERROR.get(dtype.name, 2e-2)
    if not error <= allowed:
        raise ValueError(f"its results differ from xla's by {error:.1g} of the largest, {allowed:g} is allowed")


def time_product(matrix: MatrixShape, backend: str, rows: int, dtype: jnp.dtype) -> float:
    """Seconds of a product of so many random rows: the median of a few runs, each over matrices enough that none is
    still in a cache when it is used again."""
    size = matrix.scheme.bits((matrix.rows, matrix.columns)) // 8
    count = min(_MOST_MATRICES, -(-_TIMED_BYTES // size))
    weights, x = [_random(matrix, backend, seed) for seed in range(count)], _rows(matrix, rows, dtype)

    @jax.jit
    def calls(x: jax.Array, weights: Sequence[QuantizedArray]) -> jax.Array:
        for weight in weights:
            out = quantized_product(x, weight)
            x = x + 0 * out[:, :1].astype(x.dtype)  # each waits for the one before it
        return x

    times = []
    for _ in range(_RUNS + 1):
        begin = time.perf_counter()
        calls(x, weights).block_until_ready()
        times.append((time.perf_counter() - begin) / count)
    return median(times[1:])


def _random(matrix: MatrixShape, backend: str, seed: int) -> QuantizedArray:
    shape, scheme = (matrix.rows, matrix.columns), matrix.scheme
    form = partial(part_form, scheme, shape=shape, held=four_bits(jax.default_backend(), 1))
    codes = as_held(jax.random.randint(jax.random.key(seed), shape, -7, 8, jnp.int8), form(part="codes").dtype)
    sides: dict[str, Any] = {
        part: _random_side(part, form(part=part), seed) for part in scheme.parts if part not in ("codes", "order")
    }
    order = jax.random.permutation(jax.random.key(seed), matrix.columns) if scheme.ordered else None
    return QuantizedArray(scheme, codes, **sides, order=order, backend=backend)


def _random_side(part: Part, form: jax.ShapeDtypeStruct, seed: int) -> jax.Array:
    """Random scales, zeros or factors of a type: a kernel that takes a neighbour's, or none, gives other results.

    Powers of two, and whole numbers for zeros: every type holds them, and no order of the products rounds otherwise.
    """
    key = jax.random.key(seed + zlib.crc32(part.encode()))
    if part == "zeros":
        return jax.random.randint(key, form.shape, -7, 8).astype(form.dtype)
    powers = jnp.asarray([0.125, 0.25, 0.5, 1.0])[jax.random.randint(key, form.shape, 0, 4)]
    return powers_above(powers) if form.dtype == SCALE_TYPES["e8m0"] else powers.astype(form.dtype)


def _rows(matrix: MatrixShape, count: int, dtype: jnp.dtype) -> jax.Array:
    return jax.random.normal(jax.random.key(1), (count, matrix.columns), jnp.float32).astype(dtype)
