"""A layer of a stack gives what its weights alone give, whichever it is, and no other layer has a part in that."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels.grouped_matmul import grouped_matmul
from jaxinfer_kernels.matmul_blocks import MatmulBlocks
from jaxinfer_kernels.quantized_matmul import quantized_matmul
from jaxinfer_kernels.stack import StackLayer, sliced

from tests.kernels.matmul_cases import E2M1, E4M3, E8M0, SIZES, TOLERANCE, grouped_case, run, worst_error
from tests.turns import one_of

BACKENDS = ("xla", "mosaic_tpu")
LAYERS = 3
BLOCKS = MatmulBlocks(rows=16, columns=128)
KINDS = {
    "plain": (jnp.bfloat16, jnp.bfloat16, None, False, jnp.float32),
    "int8": (jnp.bfloat16, jnp.int8, None, False, jnp.float32),
    "int4-zeros": (jnp.float32, jnp.int4, 32, True, jnp.float32),
    "e4m3-lanes-of-groups": (jnp.float32, E4M3, 2, False, jnp.float32),
    "e2m1": (jnp.float32, E2M1, 32, False, E8M0),
    "codes": (jnp.int8, jnp.int8, None, False, jnp.float32),
}
"""Types of x and of weights, values that share a scale, zeros, and the type of scales."""


def stacked(array: jax.Array, index: int, rng: np.random.Generator) -> StackLayer:
    """The array as one layer of three; the others have its values in another order."""
    others = [jnp.asarray(rng.permutation(np.asarray(array).ravel()).reshape(array.shape)) for _ in range(LAYERS)]
    others[index] = array
    return StackLayer(jnp.stack(others), jnp.int32(index))


def case(kind: str, sizes: list[int]) -> tuple[jax.Array, jax.Array, dict[str, jax.Array], np.ndarray]:
    dtype, weight_type, group, zeros, scale_type = KINDS[kind]
    return grouped_case(sizes, 50, (200, 256), dtype, weight_type, group, zeros, scale_type)


@pytest.mark.parametrize("index", range(LAYERS))
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", one_of(3, sorted(set(KINDS) - {"e4m3-lanes-of-groups"})))
def test_experts(kind: str, backend: str, index: int) -> None:
    sizes, rng = SIZES["ragged"], np.random.default_rng(index)
    x, weights, named, expected = case(kind, sizes)
    own, counts = {name: stacked(side, index, rng) for name, side in named.items()}, jnp.array(sizes, jnp.int32)
    given = x, stacked(weights, index, rng), counts
    found = run(grouped_matmul, *given, named=own, blocks=BLOCKS, backend=backend)
    assert worst_error(found, expected) < TOLERANCE.get(KINDS[kind][0], 1e-5)
    alone = run(grouped_matmul, x, weights, counts, named=named, blocks=BLOCKS, backend=backend)
    np.testing.assert_array_equal(found, alone)


@pytest.mark.parametrize("index", range(LAYERS))
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", one_of(3, sorted(set(KINDS) - {"plain"})))
def test_one_matrix(kind: str, backend: str, index: int) -> None:
    rng = np.random.default_rng(index)
    x, weights, named, expected = case(kind, [50])
    own = {name: stacked(side[0], index, rng) for name, side in named.items()}
    scales = own.pop("scales")
    given = x, stacked(weights[0], index, rng), scales
    found = run(quantized_matmul, *given, named=own, blocks=BLOCKS, backend=backend)
    assert worst_error(found, expected) < TOLERANCE.get(KINDS[kind][0], 1e-5)


def test_a_slice_of_each_layer() -> None:
    tree = {"a": StackLayer(jnp.arange(6.0).reshape(3, 2), jnp.int32(1)), "b": jnp.zeros(2), "c": None}
    found: Any = jax.jit(sliced)(tree)
    assert found["a"].tolist() == [2.0, 3.0]
    assert found["b"].tolist() == [0.0, 0.0]
    assert found["c"] is None
