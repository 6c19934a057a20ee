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


class TokenPlaces(NamedTuple):
    """Where the K and V of each token of a step belong; padding goes to the scratch page, 0.

    page, slot: [T] int32, page id and index in the page. real: [T] bool, False for padding.
    """

    page: jax.Array
    slot: jax.Array
    real: jax.Array


def token_places(rows: RaggedRows, tokens: int, page_size: int) -> TokenPlaces:
    """The page and slot of each of `tokens` tokens."""
    token = jnp.arange(tokens, dtype=jnp.int32)[:, None]
    inside = (token >= rows.offset) & (token < rows.offset + rows.count)
    row = jnp.argmax(inside, axis=1)
    real = inside.any(axis=1)
    position = jnp.where(real, rows.start[row] + token[:, 0] - rows.offset[row], 0)
    page = jnp.where(real, rows.page_table[row, position // page_size], 0)
    return TokenPlaces(page, position % page_size, real)
