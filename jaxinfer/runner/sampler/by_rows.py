"""Draws one row after another, for a CPU: what one row needs of a vocabulary stays in a cache."""

import jax
import jax.numpy as jnp

from jaxinfer.runner.sampler.logprobs import no_logprobs
from jaxinfer.runner.sampler.sample import Sampled, sample_tokens
from jaxinfer.runner.state import SlotParams


def sample_by_rows(
    logits: jax.Array,
    counts: jax.Array,
    slots: jax.Array,
    params: SlotParams,
    positions: jax.Array,
    targets: jax.Array,
    masks: jax.Array | None = None,
    before: jax.Array | None = None,
    places: jax.Array | None = None,
) -> Sampled:
    """`sample_tokens` for each row that has a slot, up to the last of them; others draw token 0.

    A row's draw has the same bits whatever other rows there are.
    """
    total, scratch = len(slots), counts.shape[0] - 1
    used = jnp.max(jnp.where(slots < scratch, jnp.arange(1, total + 1), 0))
    rows = (logits, slots, params, positions, targets, before, places)

    def step(row: jax.Array, drawn: Sampled) -> Sampled:
        own = jax.tree.map(lambda array: jax.lax.dynamic_slice_in_dim(array, row, 1), rows)
        logits, slots, params, positions, targets, before, places = own
        one = sample_tokens(logits, counts, slots, params, positions, targets, masks, before, places)
        return jax.tree.map(lambda whole, part: jax.lax.dynamic_update_slice_in_dim(whole, part, row, 0), drawn, one)

    return jax.lax.fori_loop(0, used, step, Sampled(jnp.zeros(total, jnp.int32), no_logprobs(total)))
