"""Writing to KV pages by the GPU kernel, in the Mosaic GPU interpreter, beside one token at a time in NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels.rows import TokenPlaces

pytestmark = pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="Mosaic GPU needs jax 0.11 or newer")

LAYERS, PAGES, SIZE, HEADS = 2, 6, 4, 2


def written(
    tokens: int, dtype: Any, key_dim: int, value_dim: int, padding: int = 0
) -> tuple[np.ndarray, np.ndarray, set[str]]:
    """The pages by the kernel, as they should be, and the races that were reported. The last tokens are padding."""
    from jaxinfer_kernels.gpu.kv_write import write_kv_gpu

    from tests.kernels.gpu_registers import races, register_interpreter

    rng = np.random.default_rng(tokens)
    shape = (LAYERS, 2, PAGES, SIZE, HEADS, max(key_dim, value_dim))
    before = drawn(rng, shape, dtype)
    k, v = drawn(rng, (tokens, HEADS, key_dim), dtype), drawn(rng, (tokens, HEADS, value_dim), dtype)
    place = rng.permutation(np.arange(SIZE, PAGES * SIZE))[:tokens]
    place[tokens - padding :] = 0
    expected = np.asarray(before).copy()
    for token, (page, slot) in enumerate(zip(place // SIZE, place % SIZE, strict=True)):
        expected[1, 0, page, slot, :, :key_dim] = np.asarray(k)[token]
        expected[1, 1, page, slot, :, :value_dim] = np.asarray(v)[token]
    places = TokenPlaces(*(jnp.asarray(each, jnp.int32) for each in (place // SIZE, place % SIZE)))
    with register_interpreter() as reports:
        call = jax.jit(write_kv_gpu, donate_argnums=0)
        after = np.asarray(call(before, jnp.int32(1), k, v, places))
    return after, expected, races(reports)


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return jnp.asarray(rng.integers(-100, 100, shape), jnp.float32).astype(dtype)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, jnp.float8_e4m3fn])
@pytest.mark.parametrize(("key_dim", "value_dim"), [(64, 64), (32, 16), (16, 64)])
def test_each_token_goes_to_its_place_and_nothing_else_changes(dtype: Any, key_dim: int, value_dim: int):
    after, expected, found = written(12, dtype, key_dim, value_dim)
    np.testing.assert_array_equal(after, expected)
    assert found == set()


@pytest.mark.parametrize("tokens", [1, 3, 16])
def test_any_number_of_tokens(tokens: int):
    after, expected, _ = written(tokens, jnp.bfloat16, 64, 64)
    np.testing.assert_array_equal(after, expected)


def test_padding_goes_to_the_scratch_page():
    """Tokens of padding all go to one place, so the detector sees them race; nobody reads what is there."""
    after, expected, found = written(16, jnp.bfloat16, 64, 64, padding=4)
    np.testing.assert_array_equal(after[:, :, 1:], expected[:, :, 1:])
    from tests.kernels.gpu_interpreter import on_gpu

    assert found == (set() if on_gpu() else {"write in _kernel, write in _kernel"})


@pytest.mark.parametrize(
    ("dtype", "width", "message"),
    [
        (jnp.float32, 64, "k must be of the pages' type, bfloat16, not float32"),
        (jnp.bfloat16, 12, "k must have heads of a multiple of 16 bytes and at most 256 values, not 12 of bfloat16"),
        (jnp.bfloat16, 320, "at most 256 values, not 320"),
    ],
)
def test_errors(dtype: Any, width: int, message: str):
    from jaxinfer_kernels.gpu.kv_write import write_kv_gpu

    pages, new = jnp.zeros((1, 2, 2, 4, 1, width), jnp.bfloat16), jnp.zeros((1, 1, width), dtype)
    places = TokenPlaces(jnp.ones(1, jnp.int32), jnp.ones(1, jnp.int32))
    with pytest.raises(ValueError, match=message):
        write_kv_gpu(pages, 0, new, new, places)
