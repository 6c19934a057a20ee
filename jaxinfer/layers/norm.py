"""Norms over the last axis."""

import jax
import jax.numpy as jnp

from jaxinfer.model_config.formulas.norms import NORMS
from jaxinfer.model_config.layer_kind import NormKind


def norm(kind: NormKind, x: jax.Array, weight: jax.Array, bias: jax.Array | None = None, axes: int = 1) -> jax.Array:
    """x [..., d] normed over its last `axes` axes, times weight, of the shape of these; computed in float32, in x's
    type."""
    form = NORMS[kind.form]
    scaled = form.formula(jax, x.astype(jnp.float32), tuple(range(-axes, 0)), kind.eps)
    if not (kind.wide or form.wide):
        return weight * scaled.astype(x.dtype)
    scaled = scaled * (weight.astype(jnp.float32) + kind.offset)
    return (scaled if bias is None else scaled + bias.astype(jnp.float32)).astype(x.dtype)
