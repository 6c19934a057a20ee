"""Pages that the `mosaic_tpu` backend refuses, and its block sizes: nothing is run."""

from typing import Any

import jax.numpy as jnp
import pytest
from jaxinfer_kernels import KVLayout, RaggedRows, TpuBlocks, ragged_paged_attention, tpu_blocks


@pytest.mark.parametrize(
    ("dtype", "page", "told"),
    [
        (jnp.float32, 12, "pages of float32 must hold 2, 4 or a multiple of 8 tokens for mosaic_tpu, not 12"),
        (jnp.float32, 1, "pages of float32 must hold 2, 4"),
        (jnp.bfloat16, 2, "pages of bfloat16 must hold 4, 8 or a multiple of 16 tokens"),
        (jnp.bfloat16, 6, "not 6"),
        (jnp.float8_e4m3fn, 4, "must hold 8, 16 or a multiple of 32 tokens"),
    ],
)
def test_pages_that_the_kernel_cannot_take_are_refused(dtype: Any, page: int, told: str):
    pages = jnp.zeros(
        KVLayout.HEADS.shape(layers=1, pages=2, page_size=page, kv_heads=2, key_dim=64, value_dim=64), dtype
    )
    rows = RaggedRows(jnp.ones((1, 1), jnp.int32), *jnp.array([[0], [0], [1]], jnp.int32))
    q, k = jnp.ones((1, 4, 64)), jnp.ones((1, 2, 64))
    with pytest.raises(ValueError, match=told):
        ragged_paged_attention(
            q, k, k, pages, 0, rows, short_rows=1, short_len=1, scale=0.2, backend="mosaic_tpu", layout=KVLayout.HEADS
        )


@pytest.mark.parametrize(("keys", "tokens", "cores"), [(0, 16, 1), (16, 8, 1), (16, 48, 1), (16, 16, 0)])
def test_bad_block_sizes(keys: int, tokens: int, cores: int):
    with pytest.raises(ValueError, match="must be"):
        TpuBlocks(keys, tokens, cores)
    with pytest.raises(ValueError, match="long_keys must be at least 0"):
        TpuBlocks(16, 16, long_keys=-1)


def test_default_sizes_keep_two_tiles_and_a_block_in_vmem():
    for heads, group, width in [(8, 4, 512), (1, 8, 512), (2, 7, 256), (32, 1, 512), (1, 128, 1280), (16, 16, 512)]:
        sizes = tpu_blocks(heads, group, width)
        assert 2 * sizes.keys * heads * width <= 4 << 20 or sizes.keys == 128
        assert 128 <= sizes.keys <= 1024
        assert sizes.long_keys * heads * width <= 8 << 20
        assert sizes.query_tokens * group * heads * width <= 4 << 20


@pytest.mark.parametrize(
    ("kind", "cores"), [("TPU v4", 2), ("TPU v5", 2), ("TPU v5 lite", 1), ("TPU v6 lite", 1), ("TPU7x", 1), ("", 1)]
)
def test_two_cores_by_kind_of_device(kind: str, cores: int):
    assert tpu_blocks(8, 4, 512, kind).cores == cores
