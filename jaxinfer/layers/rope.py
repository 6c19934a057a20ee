"""Rotary position embedding, in float32, halves rotated (Hugging Face's order of the channels)."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.models.config import RopeConfig


class Rotation(NamedTuple):
    """Cosine and sine of each token's angles: [T, D / 2] float32 each."""

    cos: jax.Array
    sin: jax.Array


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Radians a position for each pair of channels, [head_dim / 2] float32."""
    plain = np.float32(1.0) / np.float32(rope.theta) ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    if rope.kind == "linear":
        return (plain / np.float32(rope.factor)).astype(np.float32)
    if rope.kind == "llama3":
        return _llama3(rope, plain).astype(np.float32)
    return plain.astype(np.float32)


def _llama3(rope: RopeConfig, plain: np.ndarray) -> np.ndarray:
    """Long wavelengths divided by factor, short ones kept, a blend between; after Llama 3.1's reference code."""
    turns = rope.original_max_position_embeddings * plain / (2 * math.pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = np.clip(keep, 0.0, 1.0)
    return keep * plain + (1 - keep) * plain / rope.factor


def rotation(rope: RopeConfig, head_dim: int, positions: jax.Array) -> Rotation:
    """The rotation of tokens at `positions`, [T] int32."""
    angles = positions.astype(jnp.float32)[:, None] * inverse_frequencies(rope, head_dim)
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x: jax.Array, by: Rotation) -> jax.Array:
    """x [T, ..., D] with each pair (i, i + D / 2) turned by its angle; in x's type."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    shape = (x.shape[0],) + (1,) * (x.ndim - 2) + (x.shape[-1] // 2,)
    cos, sin = by.cos.reshape(shape), by.sin.reshape(shape)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
