"""A decoder without attention, cut into stages, as pure functions that both forms of the pipeline compose."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

DECODE_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
CHUNK_BUCKETS = (64, 256, 1024)
BUCKETS = tuple(sorted({*DECODE_BUCKETS, *CHUNK_BUCKETS}))
MAX_ROWS, MAX_TOKENS = DECODE_BUCKETS[-1], BUCKETS[-1]
SCRATCH = 64
"""The slot of padding. Sequences have those before it."""


@dataclass(frozen=True)
class Model:
    """layers: of each stage."""

    layers: tuple[int, ...]
    width: int
    vocab: int = 1024

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.layers)


class Layer(NamedTuple):
    """Weights of a layer. Zeros make one that does nothing."""

    keep: Any
    out: Any
    up: Any
    down: Any


class Rows(NamedTuple):
    """Arrays that go from stage to stage besides hidden states, int32 [T] each. draws: 1 if the next token is drawn."""

    slots: jax.Array
    positions: jax.Array
    draws: jax.Array

    def packed(self) -> jax.Array:
        """int32 [T, 3]."""
        return jnp.stack(self, axis=1)

    @classmethod
    def unpacked(cls, packed: jax.Array) -> "Rows":
        """packed: int32 [T, 3]."""
        return cls(*packed.T)


def layer_weights(model: Model) -> list[Layer]:
    """All layers in order, on the host."""
    draw, d = np.random.default_rng(0), model.width
    shapes = ((d, d), (d, d), (d, 4 * d), (4 * d, d))
    return [
        Layer(*(draw.normal(0, shape[0] ** -0.5, shape).astype(np.float32) for shape in shapes))
        for _ in range(sum(model.layers))
    ]


def tables(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Embedding and head, [vocab, width] each, on the host."""
    embed, head = np.random.default_rng(1).normal(0, 1, (2, model.vocab, model.width)).astype(np.float32)
    return embed, head


def embedded(table: jax.Array, newest: jax.Array, packed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Hidden states and packed rows of a microbatch.

    newest: int32 [slots, 2], (token, position). packed: int32 [T, 4], `Rows` and a token, -1 for the slot's newest.
    """
    slots, positions, draws, given = packed.T
    tokens = jnp.where(given < 0, newest[slots, 0], given)
    positions = jnp.where(given < 0, newest[slots, 1], positions)
    angle = positions[:, None] / (1 + jnp.arange(table.shape[1]))
    return table[tokens] + jnp.sin(angle), Rows(slots, positions, draws).packed()


def layer(weights: Layer, state: jax.Array, x: jax.Array, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """state: [slots, width], the sum of what each slot's tokens keep; a token reads the one before this step."""
    kept = _normed(x) @ weights.keep
    read = (state[rows.slots] + kept) / (rows.positions[:, None] + 1)
    x = x + read @ weights.out
    x = x + jax.nn.gelu(_normed(x) @ weights.up) @ weights.down
    return x, state.at[rows.slots].add(kept)


def drawn(table: jax.Array, x: jax.Array, rows: Rows) -> jax.Array:
    """int32 [MAX_ROWS, 3], (slot, token, position) of each token drawn. Tokens that draw come first."""
    x, rows = x[:MAX_ROWS], Rows(*(part[:MAX_ROWS] for part in rows))
    tokens = jnp.argmax(_normed(x) @ table.T, axis=1).astype(jnp.int32)
    slots = jnp.where(rows.draws > 0, rows.slots, SCRATCH)
    one = jnp.stack([slots, tokens, rows.positions + 1], axis=1)
    return jnp.concatenate([one, no_draws()[len(one) :]])


def no_draws() -> jax.Array:
    """Return the result of `drawn` for padding."""
    return jnp.tile(jnp.array([SCRATCH, 0, 0], jnp.int32), (MAX_ROWS, 1))


def updated(newest: jax.Array, draws: jax.Array) -> jax.Array:
    """newest with what was drawn."""
    return newest.at[draws[:, 0]].set(draws[:, 1:])


def _normed(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + 1e-6)
