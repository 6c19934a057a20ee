"""Compute scores from queries and keys."""

from typing import NamedTuple

import jax


class Scoring(NamedTuple):
    """Options by which q and k become scores; see `ragged_paged_attention`."""

    scale: float
    window: int | None
    soft_cap: float | None
    sinks: jax.Array | None
    k_scale: jax.Array | float | None
    v_scale: jax.Array | float | None
