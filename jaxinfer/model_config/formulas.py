"""Formulas of activations, norms and routers: a table each, by the names that layer kinds use.

A formula's first parameter is the module `jax`, which `layers` passes: reading a config.json imports no JAX.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Activation(NamedTuple):
    """formula: (jax, x) to the same shape. declared: its names in config.json."""

    formula: Callable[[Any, Any], Any]
    declared: tuple[str, ...]


ACTIVATIONS = {
    "silu": Activation(lambda jax, x: jax.nn.silu(x), ("silu", "swish")),
    "gelu": Activation(lambda jax, x: jax.nn.gelu(x, approximate=False), ("gelu",)),
    "gelu_tanh": Activation(lambda jax, x: jax.nn.gelu(x, approximate=True), ("gelu_new", "gelu_pytorch_tanh")),
    "relu": Activation(lambda jax, x: jax.nn.relu(x), ("relu",)),
}


class Norm(NamedTuple):
    """formula: (jax, x in float32, axes, eps) to x normed over these axes, without its weight. eps: the name of that in
    config.json. wide: always multiplied with the weight in float32."""

    formula: Callable[[Any, Any, tuple[int, ...], float], Any]
    eps: str
    wide: bool = False


def _over_root_mean_square(jax: Any, x: Any, axes: tuple[int, ...], eps: float) -> Any:
    return x * jax.lax.rsqrt(jax.numpy.mean(x * x, axis=axes, keepdims=True) + eps)


def _over_deviation(jax: Any, x: Any, axes: tuple[int, ...], eps: float) -> Any:
    return _over_root_mean_square(jax, x - jax.numpy.mean(x, axis=axes, keepdims=True), axes, eps)


NORMS = {
    "rms": Norm(_over_root_mean_square, "rms_norm_eps"),
    "layer": Norm(_over_deviation, "layer_norm_eps", wide=True),
}


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


def check_formula(table: Mapping[str, Any], name: str) -> None:
    """Raise ValueError unless the table has the name."""
    if name not in table:
        raise ValueError(f"{name!r} is not one of {', '.join(table)}")
