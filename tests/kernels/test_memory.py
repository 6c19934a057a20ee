"""What the compiled program says: pages are updated in place, and temporaries follow tiles, not capacity."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxinfer_kernels import BlockSizes, KVLayout, RaggedRows, copy_pages, ragged_paged_attention

SIZES = BlockSizes(keys=64, short_tiles=4, query_tokens=32, query_blocks=1)
PAGE, HEADS, DIM, LAYERS = 16, 2, 64, 4
OLD_JAX = jax.__version_info__ < (0, 11)


def shape(*dims: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def memory_of(program: Any) -> Any:
    return program.memory_analysis()


def compiled(*, pages: int, width: int, tokens: int, rows: int, decode: bool, scan: bool = False, dtype=jnp.float32):
    def layer(kv, index, q, k, v, rows, short):
        short = rows.count.shape[0] if decode else short
        out, kv = ragged_paged_attention(
            q, k, v, kv, index, rows, short_rows=short, short_len=1, scale=0.1, block_sizes=SIZES
        )
        return kv, out

    def forward(kv, q, k, v, rows, short):
        if scan:
            return jax.lax.scan(lambda kv, i: layer(kv, i, q, k, v, rows, short), kv, jnp.arange(LAYERS))
        outs = []
        for index in range(LAYERS):
            kv, q = layer(kv, index, q, k, v, rows, short)
            outs.append(q)
        return kv, outs

    integers: Any = partial(shape, dtype=jnp.int32)
    table: Any = RaggedRows(*(integers(*dims) for dims in [(rows, width), (rows,), (rows,), (rows,)]))
    kv = shape(LAYERS, 2, pages, PAGE, HEADS, DIM, dtype=dtype)
    q, k = shape(tokens, 3 * HEADS, DIM, dtype=dtype), shape(tokens, HEADS, DIM, dtype=dtype)
    return jax.jit(forward, donate_argnums=0).lower(kv, q, k, k, table, integers()).compile()


def kv_bytes(pages: int, dtype=jnp.float32) -> int:
    return LAYERS * 2 * pages * PAGE * HEADS * DIM * jnp.dtype(dtype).itemsize


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scan"])
@pytest.mark.parametrize("decode", [False, True], ids=["mixed", "decode"])
def test_pages_are_aliased_and_never_copied(decode: bool, scan: bool, dtype):
    if dtype == jnp.bfloat16 and OLD_JAX:
        pytest.skip("jax 0.10 on CPU converts bfloat16 pages to float32 and back in every scatter")
    pages = 512
    memory = memory_of(compiled(pages=pages, width=64, tokens=16, rows=16, decode=decode, scan=scan, dtype=dtype))
    assert memory.alias_size_in_bytes >= kv_bytes(pages, dtype)
    assert memory.temp_size_in_bytes < kv_bytes(pages, dtype) / LAYERS / 2


@pytest.mark.parametrize("decode", [False, True], ids=["mixed", "decode"])
def test_temporaries_do_not_follow_capacity(decode: bool):
    small, large = (
        memory_of(compiled(pages=pages, width=width, tokens=16, rows=16, decode=decode)).temp_size_in_bytes
        for pages, width in ((64, 16), (4096, 1024))
    )
    # Page tables are copied when rows are sorted: a few int32 a row and page, nothing the size of keys.
    assert large - small <= 8 * 16 * 1024 * 4


def test_all_short_program_has_no_long_path():
    text = {
        decode: str(compiled(pages=64, width=8, tokens=4, rows=4, decode=decode).as_text()) for decode in (True, False)
    }
    assert text[True].count("while(") == LAYERS
    assert text[False].count("while(") > LAYERS


@pytest.mark.parametrize("dim", [DIM, 256])
def test_copy_pages_in_place(dim: int):
    kv = shape(LAYERS, 2, 512, PAGE, HEADS, dim)
    ids = shape(8, dtype=jnp.int32)
    memory = memory_of(jax.jit(copy_pages, donate_argnums=0).lower(kv, ids, ids).compile())
    assert memory.alias_size_in_bytes >= kv_bytes(512) * dim // DIM
    assert memory.temp_size_in_bytes < kv_bytes(512) * dim // DIM / 16


@pytest.mark.parametrize("dim", [4, 256])
@pytest.mark.parametrize("layout", [KVLayout.TOKENS, KVLayout.HEADS])
def test_copy_pages_copies_whole_pages_and_ignores_padding(layout: KVLayout, dim: int):
    """Page 5 is read and written: all are read before."""
    kv = np.random.default_rng(0).standard_normal((2, 2, 7, 3, 1, dim)).astype(np.float32)
    pages = np.moveaxis(kv, 2, layout.page_axis)
    source, destination = np.array([3, 0, 5, 0], np.int32), np.array([5, 0, 2, 0], np.int32)
    copied = jax.jit(copy_pages, static_argnums=3)(pages, source, destination, layout)
    wanted = kv.copy()
    wanted[:, :, 5], wanted[:, :, 2] = kv[:, :, 3], kv[:, :, 5]
    np.testing.assert_array_equal(np.moveaxis(np.asarray(copied), layout.page_axis, 2), wanted)
