"""Codes of int4 in pairs: where each lies, and that products with them are those with a code in a byte."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels.cpu.packed import pack, unpack
from jaxinfer_kernels.grouped_matmul import grouped_matmul
from jaxinfer_kernels.quantized_matmul import quantized_matmul
from jaxinfer_kernels.stack import StackLayer

from tests.native import needs_native

from .interpreter import tpu_interpreter
from .matmul_cases import SIZES, codes, normal, positive

BACKENDS = ["xla", pytest.param("native", marks=needs_native), "mosaic_tpu"]
DEPTH, COLUMNS, GROUP = 256, 24, 32


def by_hand(row: list[int]) -> list[int]:
    """The bytes of a row, block by block."""
    found = []
    for begin in range(0, len(row), 32):
        for place in range(begin, begin + 16):
            low, high = row[place] % 16, row[place + 16] % 16
            found.append(low + 16 * high)
    return found


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-8, 8, shape).astype(np.int8)


@pytest.mark.parametrize("shape", [(32,), (3, 64), (2, 3, 96)])
def test_codes_lie_in_blocks_of_32(shape: tuple[int, ...]) -> None:
    """Of NumPy, of JAX, and in int4."""
    values = drawn(*shape)
    wanted = [by_hand(row) for row in values.reshape(-1, shape[-1]).tolist()]
    packed = pack(values)
    assert isinstance(packed, np.ndarray)
    for found in (packed, jax.jit(pack)(values), jax.jit(pack)(jnp.asarray(values).astype(jnp.int4))):
        assert found.dtype == np.uint8
        assert found.shape == (*shape[:-1], shape[-1] // 2)
        assert np.asarray(found).reshape(len(wanted), -1).tolist() == wanted


def test_every_byte_is_unpacked_to_the_codes_that_it_was_packed_from() -> None:
    packed = np.arange(256, dtype=np.uint8).reshape(2, 128)
    found = np.asarray(jax.jit(unpack)(packed))
    assert (found.dtype, found.shape) == (np.int8, (2, 256))
    assert [by_hand(row) for row in found.tolist()] == packed.tolist()


def by(backend: str, function: Any, *given: Any, **named: Any) -> np.ndarray:
    """The result, compiled."""
    call = jax.jit(lambda given, named: function(*given, **named, out_dtype=jnp.float32, backend=backend))
    if backend != "mosaic_tpu":
        return np.asarray(call(given, named))
    with tpu_interpreter("eager"):
        return np.asarray(call(given, named))


def layer(array: jax.Array) -> StackLayer:
    """The array as the second of three layers."""
    return StackLayer(jnp.stack([array[::-1], array, array[::-1]]), jnp.int32(1))


def sides(rng: np.random.Generator, *lead: int, zeros: bool) -> dict[str, jax.Array]:
    shape = (*lead, DEPTH // GROUP)
    return {"scales": positive(rng, *shape), **({"zeros": normal(rng, *shape)} if zeros else {})}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_product_has_the_same_bits(backend: str, zeros: bool, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    x, held = normal(rng, 5, DEPTH, dtype=dtype), codes(rng, COLUMNS, DEPTH, dtype=jnp.int4).astype(jnp.int8)
    named = sides(rng, COLUMNS, zeros=zeros)
    wanted = by(backend, quantized_matmul, x, held, **named)
    assert np.abs(wanted).max() > 1
    np.testing.assert_array_equal(by(backend, quantized_matmul, x, pack(held), **named), wanted)
    stacked = {name: layer(side) for name, side in named.items()}
    np.testing.assert_array_equal(by(backend, quantized_matmul, x, layer(pack(held)), **stacked), wanted)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_product_of_experts_has_the_same_bits(backend: str, zeros: bool) -> None:
    rng, sizes = np.random.default_rng(2), jnp.array(SIZES["ragged"], jnp.int32)
    x, held = normal(rng, 50, DEPTH), codes(rng, len(sizes), COLUMNS, DEPTH, dtype=jnp.int4).astype(jnp.int8)
    named = sides(rng, len(sizes), COLUMNS, zeros=zeros)
    wanted = by(backend, grouped_matmul, x, held, sizes, **named)
    assert np.abs(wanted).max() > 1
    np.testing.assert_array_equal(by(backend, grouped_matmul, x, pack(held), sizes, **named), wanted)
    stacked = {name: layer(side) for name, side in named.items()}
    np.testing.assert_array_equal(by(backend, grouped_matmul, x, layer(pack(held)), sizes, **stacked), wanted)


@needs_native
def test_native_products_read_packed_codes_as_they_are() -> None:
    rng = np.random.default_rng(3)
    x, held = normal(rng, 5, DEPTH), pack(codes(rng, COLUMNS, DEPTH, dtype=jnp.int4).astype(jnp.int8))
    named = sides(rng, COLUMNS, zeros=False)
    for weight, scales in ((held, named["scales"]), (layer(held), layer(named["scales"]))):
        call = jax.jit(lambda x, weight, scales: quantized_matmul(x, weight, scales, backend="native"))
        lowered = call.lower(x, weight, scales).as_text()
        product = next(line for line in lowered.splitlines() if "@jaxinfer_product" in line)
        assert "xui8>" in product
        assert "shift" not in lowered


@pytest.mark.parametrize(("depth", "size"), [(64, 64), (48, 24), (64, 31)])
def test_rows_of_another_length_are_refused(depth: int, size: int) -> None:
    """Codes that are not packed; half a block; a byte that is missing."""
    x, weight = jnp.ones((2, depth)), jnp.ones((3, size), jnp.uint8)
    with pytest.raises(ValueError, match=rf"where K is a multiple of 32, not \(3, {size}\) of uint8"):
        quantized_matmul(x, weight, jnp.ones(3))
    with pytest.raises(ValueError, match=rf"or packed in uint8 .*, not \(1, 3, {size}\) of uint8"):
        grouped_matmul(x, weight[None], jnp.ones(1, jnp.int32), scales=jnp.ones((1, 3)))
