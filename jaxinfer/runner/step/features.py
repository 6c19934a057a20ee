"""FeatureStore: hidden states of a target that an EAGLE-3 head has yet to read, kept of each slot between steps.

A head reads the features of a position together with the token after it, which the newest position of a row does not
have yet, nor do drafted ones before they are accepted. So features of each slot's last positions stay on the device: in
a ring by position, behind the KV blocks. Each has its position and token beside it: what does not fit a row's tokens,
of a draft that was not kept or of the slot's last sequence, is not read.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.eagle3 import Eagle3Model
from jaxinfer.models.loaded import LoadedModel

Arrays = tuple[jax.Array, ...]

FEATURE_ARRAYS = 2
"""Number of `feature_arrays` of a model whose features are read."""
_PLAIN_STEPS = 32
"""Plain decode steps between steps that draft of which features are kept. More of them leave a hole in the head's
blocks, which costs drafts alone."""


def ring_size(shapes: EngineShapes) -> int:
    """Positions of a slot whose features are kept: of a row's newest token and its drafts, and a few more."""
    return shapes.row_tokens + _PLAIN_STEPS


def feature_arrays(model: LoadedModel, shapes: EngineShapes) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the arrays kept for the slots of all shards, in their order at the end of KV blocks: features, [slots,
    ring, d]; and for each its position plus one and its token, int32 [slots, ring, 2]. Empty if nothing reads
    features."""
    if not model.taps:
        return ()
    assert model.draft is not None
    return feature_shapes(model.draft.config.hidden_size, model.draft.dtype, shapes)


def feature_shapes(width: int, dtype: jnp.dtype, shapes: EngineShapes) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the `feature_arrays` of a head whose hidden states have `width` values."""
    ring = shapes.num_slots * shapes.shards, ring_size(shapes)
    return jax.ShapeDtypeStruct((*ring, width), dtype), jax.ShapeDtypeStruct((*ring, 2), np.int32)


class FeatureStore:
    """weights, kv: those of the target, and after them those of its head; the store is the last two of kv."""

    def __init__(self, target: LoadedModel, head: Eagle3Model, shapes: EngineShapes):
        self._first_weight = len(target.weights)
        self._head = head
        self._ring = ring_size(shapes)

    def features(self, weights: Arrays, tapped: Arrays) -> jax.Array:
        """The target's hidden states of each layer, [T, D] each, as the head reads them: [T, d]."""
        return self._head.build_head(weights[self._first_weight :]).features(tapped)

    def keep(
        self, weights: Arrays, kv: Arrays, slots: jax.Array, start: jax.Array, tokens: jax.Array, tapped: Arrays
    ) -> Arrays:
        """kv with features of rows of W tokens each, int32 [R, W], from positions `start` on, [R]. tapped: hidden
        states [R·W, D] of each layer."""
        features = self.features(weights, tapped)
        return self.put(kv, slots, start, tokens, features.reshape(*tokens.shape, -1))

    def put(self, kv: Arrays, slots: jax.Array, start: jax.Array, tokens: jax.Array, features: jax.Array) -> Arrays:
        """Return kv with features, [R, W, d], of `tokens` stored from position `start` on."""
        *blocks, ring, tags = kv
        positions = start[:, None] + jnp.arange(tokens.shape[1])
        places = slots[:, None], positions % self._ring
        tags = tags.at[places].set(jnp.stack([positions + 1, tokens], axis=-1))
        return (*blocks, ring.at[places].set(features.astype(ring.dtype)), tags)

    def kept(self, kv: Arrays, slots: jax.Array, length: jax.Array, history: jax.Array) -> jax.Array:
        """Count the positions right before each row's newest token, at `length`, whose features are kept without a gap:
        int32 [R]. history: of `SlotState`."""
        tags = kv[-1]
        back = length[:, None] - 1 - jnp.arange(self._ring)
        own = jnp.stack([back + 1, history[slots[:, None], jnp.maximum(back, 0)]], axis=-1)
        fits = jnp.all(tags[slots[:, None], back % self._ring] == own, axis=-1) & (back >= 0)
        return jnp.sum(jnp.cumprod(fits, axis=1), axis=1, dtype=jnp.int32)

    def at(self, kv: Arrays, slots: jax.Array, start: jax.Array, width: int) -> jax.Array:
        """Return the ring's features of `width` positions of each row from `start` on, [R, width, d]."""
        return kv[-FEATURE_ARRAYS][slots[:, None], (start[:, None] + jnp.arange(width)) % self._ring]
