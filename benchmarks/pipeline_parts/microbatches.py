"""Microbatches as the host makes them, and the tokens that they give on one device without a pipeline."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.pipeline_parts.model import (
    BUCKETS,
    SCRATCH,
    Model,
    Rows,
    drawn,
    embedded,
    layer,
    layer_weights,
    tables,
    updated,
)


class Microbatch(NamedTuple):
    """packed: int32 [T, 4], as `embedded` takes it, first the tokens that draw. rows: how many draw."""

    packed: np.ndarray
    rows: int

    @property
    def bucket(self) -> int:
        """Tokens, with padding."""
        return len(self.packed)


def bucket_of(tokens: int) -> int:
    """The smallest that fits."""
    return next(bucket for bucket in BUCKETS if bucket >= tokens)


def decode(slots: Sequence[int]) -> Microbatch:
    """The newest token of each slot."""
    return _padded(_newest(slots), len(slots))


def chunk(slot: int, tokens: int) -> Microbatch:
    """A whole prompt."""
    return mixed([], slot, tokens)


def mixed(slots: Sequence[int], slot: int, tokens: int) -> Microbatch:
    """The newest token of each of `slots`, and a whole prompt in another."""
    draw = np.random.default_rng(slot).integers(0, 512, tokens)
    prompt = [(slot, at, int(at == tokens - 1), int(draw[at])) for at in range(tokens)]
    return _padded([*_newest(slots), *reversed(prompt)], len(slots) + 1)


def empty() -> Microbatch:
    """A bubble."""
    return _padded([], 0)


def _newest(slots: Sequence[int]) -> list[tuple[int, int, int, int]]:
    return [(slot, 0, 1, -1) for slot in slots]


def _padded(rows: list[tuple[int, int, int, int]], drawing: int) -> Microbatch:
    missing = bucket_of(len(rows)) - len(rows)
    return Microbatch(np.array([*rows, *[(SCRATCH, 0, 0, 0)] * missing], np.int32), drawing)


def decode_round(stages: int, rows: int) -> list[Microbatch]:
    """Return one microbatch a stage, each of other slots."""
    return [decode(range(at * rows, (at + 1) * rows)) for at in range(stages)]


def first_newest() -> np.ndarray:
    """int32 [slots, 2]: each slot's first token and its position."""
    slots = np.arange(SCRATCH + 1, dtype=np.int32)
    return np.stack([slots * 7 % 512, slots % 5], axis=1)


def reference_tokens(model: Model, microbatches: Sequence[Microbatch]) -> list[list[int]]:
    """Return the tokens that each microbatch draws if one device runs all layers, one microbatch after the other."""
    weights, (embed, head) = jax.tree.map(jnp.asarray, layer_weights(model)), map(jnp.asarray, tables(model))

    @jax.jit
    def step(states: list[jax.Array], newest: jax.Array, packed: Any) -> tuple[list[jax.Array], jax.Array, jax.Array]:
        x, rows = embedded(embed, newest, packed)
        after = []
        for one, state in zip(weights, states, strict=True):
            x, state = layer(one, state, x, Rows.unpacked(rows))
            after.append(state)
        draws = drawn(head, x, Rows.unpacked(rows))
        return after, updated(newest, draws), draws

    states = [jnp.zeros((SCRATCH + 1, model.width)) for _ in weights]
    newest, found = jnp.asarray(first_newest()), []
    for microbatch in microbatches:
        states, newest, draws = step(states, newest, microbatch.packed)
        found.append(np.asarray(draws)[: microbatch.rows, 1].tolist())
    return found
