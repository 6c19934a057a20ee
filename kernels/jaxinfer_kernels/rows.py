"""The rows of one step, as every attention backend takes them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class RaggedRows(NamedTuple):
    """One row a request in the step; rows stand in the order of `offset`, short rows before long ones.

    page_table: [R, P] int32, page ids; entry p holds positions p * page .. (p + 1) * page - 1.
    start: [R] int32, position of the row's first token of this step.
    offset: [R] int32, index of that token in the token axis T.
    count: [R] int32, tokens of the row in this step; 0 is an empty row.
    """

    page_table: jax.Array
    start: jax.Array
    offset: jax.Array
    count: jax.Array


class TokenRows(NamedTuple):
    """Row of each token of a step, and the token's index in it: [T] int32. real: [T] bool, False for padding."""

    row: jax.Array
    within: jax.Array
    real: jax.Array


class TokenPlaces(NamedTuple):
    """Places of a step's new K and V, [T] int32: each token's page id, and its index in the page.

    Padding goes to the scratch page, 0.
    """

    page: jax.Array
    slot: jax.Array


def token_rows(rows: RaggedRows, tokens: int) -> TokenRows:
    """The row of each of `tokens` tokens; padding has row 0 and index 0."""
    token = jnp.arange(tokens, dtype=jnp.int32)[:, None]
    inside = (token >= rows.offset) & (token < rows.offset + rows.count)
    row, real = jnp.argmax(inside, axis=1), inside.any(axis=1)
    return TokenRows(row, jnp.where(real, token[:, 0] - rows.offset[row], 0), real)


def token_places(rows: RaggedRows, tokens: int, page_size: int) -> TokenPlaces:
    """The page and slot of each of `tokens` tokens."""
    row, within, real = token_rows(rows, tokens)
    position = jnp.where(real, rows.start[row] + within, 0)
    page = jnp.where(real, rows.page_table[row, position // page_size], 0)
    return TokenPlaces(page, position % page_size)


class QueryBlocks(NamedTuple):
    """Pieces of rows that are attended at once; int32 [B] each.

    row: index of the row. start, offset, count: position and token index of the block's first token, and its number of
    tokens, 0 for a block that is not in use.
    """

    row: jax.Array
    start: jax.Array
    offset: jax.Array
    count: jax.Array


def split_rows(
    rows: RaggedRows, short_rows: int | jax.Array, tokens: int, block: int
) -> tuple[QueryBlocks | None, QueryBlocks | None]:
    """Short rows, a block each, and long rows, cut into blocks of at most `block` of the T tokens.

    None for a kind of which it is known that there is none.
    """
    total = rows.count.shape[0]
    index = jnp.arange(total, dtype=jnp.int32)
    known = short_rows if isinstance(short_rows, int) else None
    count = jnp.where(index < short_rows, rows.count, 0)
    short = None if known == 0 else QueryBlocks(index, rows.start, rows.offset, count)
    return short, None if known == total else _cut(rows, rows.count - count, tokens, block)


def _cut(rows: RaggedRows, counts: jax.Array, tokens: int, size: int) -> QueryBlocks:
    """Blocks of at most `size` tokens of rows of `counts` tokens; those in use come first."""
    blocks = -(-counts // size)
    ends = jnp.cumsum(blocks)
    index = jnp.arange(-(-tokens // size) + counts.shape[0], dtype=jnp.int32)
    row = jnp.searchsorted(ends, index, side="right", method="compare_all").astype(jnp.int32)
    used = row < counts.shape[0]
    row = jnp.where(used, row, 0)
    done = (index - (ends - blocks)[row]) * size
    count = jnp.where(used, jnp.clip(counts[row] - done, 0, size), 0)
    return QueryBlocks(row, rows.start[row] + done, rows.offset[row] + done, count)


def key_range(blocks: QueryBlocks, window: int | None) -> tuple[jax.Array, jax.Array]:
    """First key that any token of a block sees, and the end of its keys: [B] each, equal for a block not in use."""
    first = jnp.zeros_like(blocks.start) if window is None else jnp.maximum(blocks.start - window + 1, 0)
    return first, jnp.where(blocks.count > 0, blocks.start + blocks.count, first)
