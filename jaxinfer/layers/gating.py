"""Activations between the products of an MLP."""

import jax
import jax.numpy as jnp

from jaxinfer.model_config.formulas.activations import ACTIVATIONS
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind


def gated(kind: MlpKind | ExpertsKind, gate_up: jax.Array) -> jax.Array:
    """gate_up [T, ff / B, 2, B] to what goes into the second product, [T, ff / B, B]."""
    gate, up = gate_up[:, :, 0], gate_up[:, :, 1]
    if kind.clamp is None:
        return activated(kind, gate) * up
    limit = kind.clamp.limit
    gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return gate * jax.nn.sigmoid(gate * kind.clamp.alpha) * (up + 1)


def activated(kind: MlpKind | ExpertsKind, x: jax.Array) -> jax.Array:
    """x after the activation, of its shape."""
    return ACTIVATIONS[kind.activation].formula(jax, x)
