"""Temporaries of the `xla` backend follow tiles, never rows x the longest row. Compiled only, from 1k to 32k."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxinfer_kernels import KVLayout, RaggedRows, ragged_latent_attention, ragged_paged_attention

PAGE, Q_HEADS, KV_HEADS, DIM = 16, 8, 4, 64
CONTEXTS = (1024, 32768)
KINDS = {"decode": 1, "verify": 4, "prefill": 32}
"""Tokens a row."""


def shape(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def temporaries(attend: Any, kind: str, rows: int, context: int, layout: KVLayout = KVLayout.TOKENS) -> int:
    """Bytes of temporaries of one call over rows that may be `context` tokens long, with pages for all of them."""
    width, tokens = context // PAGE, rows * KINDS[kind]
    integers: Any = partial(shape, dtype=jnp.int32)
    table: Any = RaggedRows(integers(rows, width), integers(rows), integers(rows), integers(rows))
    dims = {"layers": 2, "pages": 1 + rows * width, "page_size": PAGE, "kv_heads": KV_HEADS}
    kv = shape(*layout.shape(**dims, key_dim=DIM, value_dim=DIM))
    q, k = shape(tokens, Q_HEADS, DIM), shape(tokens, KV_HEADS, DIM)
    program = jax.jit(partial(attend, kind=kind, layout=layout), donate_argnums=0)
    memory = program.lower(kv, q, k, table, integers()).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


def paged(
    kv: jax.Array, q: jax.Array, k: jax.Array, rows: RaggedRows, short: jax.Array, *, kind: str, layout: KVLayout
):
    split = short if kind == "prefill" else rows.count.shape[0]
    named: Any = {"short_rows": split, "short_len": 4 if kind == "verify" else 1, "scale": 0.1}
    if layout is KVLayout.LATENT:
        return ragged_latent_attention(q, k[:, 0], kv, 0, rows, value_dim=DIM // 2, **named)
    return ragged_paged_attention(q, k, k, kv, 0, rows, layout=layout, **named)


def gathered(
    kv: jax.Array, q: jax.Array, k: jax.Array, rows: RaggedRows, short: jax.Array, *, kind: str, layout: KVLayout
):
    """What must not be: the keys of all rows side by side, as long as the longest."""
    keys, values = (
        kv[0, :, rows.page_table].reshape(-1, 2, rows.page_table.shape[1] * PAGE, KV_HEADS, DIM).swapaxes(0, 1)
    )
    scores = jnp.einsum("rhgd,rshd->rhgs", q.reshape(len(keys), KV_HEADS, -1, DIM), keys)
    return jnp.einsum("rhgs,rshd->rhgd", jax.nn.softmax(scores), values), kv.at[0, 0, 0, 0].set(k[0])


def table_bytes(rows: int, context: int) -> int:
    return rows * (context // PAGE) * 4


@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_temporaries_do_not_grow_with_rows_times_longest(kind: str, rows: int) -> None:
    sizes = [temporaries(paged, kind, rows, context) for context in CONTEXTS]
    # Copies of page tables are allowed, nothing of the size of keys: one head's keys of one row are sixteen times that.
    assert sizes[-1] - sizes[0] <= 4 * table_bytes(rows, CONTEXTS[-1])
    assert sizes[-1] < rows * CONTEXTS[-1] * KV_HEADS * DIM * 4 / 4


@pytest.mark.parametrize("layout", [KVLayout.HEADS, KVLayout.LATENT])
def test_nor_in_the_other_layouts(layout: KVLayout) -> None:
    sizes = [temporaries(paged, "decode", 8, context, layout) for context in (CONTEXTS[0], CONTEXTS[-1])]
    assert sizes[1] - sizes[0] <= 4 * table_bytes(8, CONTEXTS[-1])


def test_the_measure_sees_keys_that_are_gathered() -> None:
    sizes = [temporaries(gathered, "decode", 8, context) for context in (CONTEXTS[0], CONTEXTS[-1])]
    assert sizes[1] - sizes[0] > 8 * (CONTEXTS[-1] - CONTEXTS[0]) * KV_HEADS * DIM * 4
