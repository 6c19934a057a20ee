"""Norms, by name."""

from collections.abc import Callable
from typing import Any, NamedTuple


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
