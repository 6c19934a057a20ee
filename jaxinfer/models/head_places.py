"""Heads of a weight in the places that a mesh gives them (`HeadSpread`). No jax."""

from jaxinfer.checkpoint.sources import Placed, Source
from jaxinfer.model_config.head_spread import HeadSpread


def columns_by_head(out: Source, spread: HeadSpread, fill: float = 0.0) -> Source:
    """[hidden, Hq·D], or the scales of its groups; scales of whole rows stay. fill: of heads that are added."""
    if not spread.padded or out.shape[1:] in ((), (1,)):
        return out
    width = out.shape[1] // spread.query_heads  # of values, or of the scales of a head's values
    columns = (None if head is None else head * width for head in spread.query_order)
    order = tuple(None if first is None else first + i for first in columns for i in range(width))
    return Placed(out, 1, order, fill)
