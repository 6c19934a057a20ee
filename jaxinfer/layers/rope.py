"""Rotary position embedding, in float32, halves rotated (Hugging Face's order of the channels)."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.model_config.rope_config import RopeConfig


class Rotation(NamedTuple):
    """Cosine and sine of each token's angles: [T, D / 2] float32 each, of the D channels that turn."""

    cos: jax.Array
    sin: jax.Array


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Radians a position for each pair of channels, [head_dim / 2] float32; `dynamic`: within the original context."""
    plain = np.float32(1.0) / _powers(rope.theta, head_dim)
    if rope.kind == "linear":
        return (plain / np.float32(rope.factor)).astype(np.float32)
    if rope.kind == "llama3":
        return _llama3(rope, plain).astype(np.float32)
    if rope.kind == "yarn":
        return _yarn(rope, plain).astype(np.float32)
    if rope.kind == "longrope":
        factors = rope.long_factor if rope.stretched else rope.short_factor
        return (plain / np.array(factors, np.float32)).astype(np.float32)
    return plain.astype(np.float32)


def _exponents(head_dim: int) -> np.ndarray:
    return np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)


def _powers(theta: float, head_dim: int) -> np.ndarray:
    """NumPy's powers in float32 differ between processors in the last digit, and with them the programs whose constants
    they are. Rounded from float64 they agree: what differs there hardly ever decides how float32 is rounded."""
    return (np.float64(theta) ** _exponents(head_dim).astype(np.float64)).astype(np.float32)


def _llama3(rope: RopeConfig, plain: np.ndarray) -> np.ndarray:
    """Long wavelengths divided by factor, short ones kept, a blend between; after Llama 3.1's reference code."""
    turns = rope.original_max_position_embeddings * plain / (2 * math.pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = np.clip(keep, 0.0, 1.0)
    return keep * plain + (1 - keep) * plain / rope.factor


def _yarn(rope: RopeConfig, plain: np.ndarray) -> np.ndarray:
    """Pairs that turn often are kept, those that turn seldom divided by factor, a ramp over pairs between (YaRN)."""
    head_dim = 2 * len(plain)

    def pair_that_turns(times: float) -> float:
        """Number of the pair of channels that turns so often over the original context."""
        length = rope.original_max_position_embeddings / (times * 2 * math.pi)
        return head_dim * math.log(length) / (2 * math.log(rope.theta))

    first, last = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first or 0.001
    divided = np.clip((np.arange(len(plain), dtype=np.float32) - np.float32(first)) / np.float32(width), 0.0, 1.0)
    return divided * plain / np.float32(rope.factor) + (1 - divided) * plain


def _dynamic(rope: RopeConfig, head_dim: int, positions: jax.Array) -> jax.Array:
    """Radians a position for each token, [T, head_dim / 2]: those of a sequence that ends with it (NTK).

    transformers takes the length of the longest sequence in the batch and leaves cached keys as they are; a key would
    then depend on what else was computed in its step. Here it depends on its own position, so that chunks, batches
    and the prefix cache do not matter. Equal to transformers up to the original context, and from there on where it
    generates token by token; a longer prompt, computed there in one piece, differs.
    """
    original, factor = rope.original_max_position_embeddings, rope.factor
    beyond = jnp.maximum(positions.astype(jnp.float32) + 1 - original, 0.0) / original
    stretch = (1 + factor * beyond) ** np.float32(head_dim / (head_dim - 2))
    return 1 / (np.float32(rope.theta) * stretch)[:, None] ** _exponents(head_dim)


def rotation(rope: RopeConfig, head_dim: int, positions: jax.Array) -> Rotation:
    """The rotation of heads of `head_dim` channels, of tokens at `positions`, [T] int32."""
    head_dim = rope.turned(head_dim)
    frequencies = inverse_frequencies(rope, head_dim)
    if rope.kind == "dynamic":
        stretched = (positions >= rope.original_max_position_embeddings)[:, None]
        frequencies = jnp.where(stretched, _dynamic(rope, head_dim, positions), frequencies)
    angles = positions.astype(jnp.float32)[:, None] * frequencies
    scale = np.float32(rope.attention_factor)
    return Rotation(jnp.cos(angles) * scale, jnp.sin(angles) * scale)


def rotate(x: jax.Array, by: Rotation) -> jax.Array:
    """x [T, ..., D'] with each pair (i, i + D / 2) of its first D channels turned by its angle; in x's type."""
    half = by.cos.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    first, second = jnp.split(turned.astype(jnp.float32), 2, axis=-1)
    shape = (x.shape[0],) + (1,) * (x.ndim - 2) + (half,)
    cos, sin = by.cos.reshape(shape), by.sin.reshape(shape)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
    return jnp.concatenate([turned, rest], axis=-1) if rest.shape[-1] else turned
