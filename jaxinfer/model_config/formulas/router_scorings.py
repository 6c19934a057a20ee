"""Scorings of routers, which turn scores into the weights of experts, by name."""

from collections.abc import Callable
from typing import Any, NamedTuple


class RouterScoring(NamedTuple):
    """formula: (jax, scores [T, n] in float32) to the weights of n experts. of_chosen: n are the experts that a token
    has chosen by their scores, not all."""

    formula: Callable[[Any, Any], Any]
    of_chosen: bool = False


ROUTER_SCORINGS = {
    "softmax": RouterScoring(lambda jax, scores: jax.nn.softmax(scores, axis=-1)),
    "softmax_chosen": RouterScoring(lambda jax, scores: jax.nn.softmax(scores, axis=-1), of_chosen=True),
    "sigmoid": RouterScoring(lambda jax, scores: jax.nn.sigmoid(scores)),
}
