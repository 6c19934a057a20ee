"""The tables of formulas: a new entry is computed without a change anywhere else, and names are checked."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.layers.experts import route
from jaxinfer.layers.gating import gated
from jaxinfer.layers.norm import norm
from jaxinfer.model_config.formulas import activations, norms, router_scorings
from jaxinfer.model_config.layer_kind import NormKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind, RouterKind

X = np.array([[-3.0, 0.5, 2.0, 1.0]], np.float32)


@pytest.fixture(autouse=True)
def new_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    squared = activations.Activation(lambda jax, x: jax.nn.relu(x) ** 2, ("relu2",))
    mean = norms.Norm(lambda jax, x, axes, eps: x - jax.numpy.mean(x, axis=axes, keepdims=True), "eps")
    root = router_scorings.RouterScoring(lambda jax, scores: jax.numpy.sqrt(jax.nn.softplus(scores)))
    monkeypatch.setitem(activations.ACTIVATIONS, "relu2", squared)
    monkeypatch.setitem(norms.NORMS, "mean", mean)
    monkeypatch.setitem(router_scorings.ROUTER_SCORINGS, "sqrtsoftplus", root)


def test_a_new_activation_is_computed() -> None:
    gate, up = X.reshape(1, 1, 4), np.full((1, 1, 4), 2, np.float32)
    found = gated(MlpKind(4, "relu2"), jnp.stack([gate, up], axis=2))
    np.testing.assert_allclose(found.ravel(), [0, 0.5, 8, 2], rtol=1e-6)


def test_a_new_norm_is_computed() -> None:
    found = norm(NormKind("mean"), jnp.asarray(X), jnp.full(4, 2.0))
    np.testing.assert_allclose(found, 2 * (X - 0.125), rtol=1e-6)


def test_a_new_scoring_of_a_router_is_computed() -> None:
    chosen, weights = route(ExpertsKind(4, 2, 8, RouterKind("sqrtsoftplus")), jnp.asarray(X), None)
    np.testing.assert_array_equal(chosen, [[2, 3]])
    np.testing.assert_allclose(weights, np.sqrt(np.log1p(np.exp([[2.0, 1.0]]))), rtol=1e-6)


def test_other_names_are_refused() -> None:
    with pytest.raises(ValueError, match="'tanh' is not one of silu, gelu, gelu_tanh, relu, relu2"):
        MlpKind(4, "tanh")
    with pytest.raises(ValueError, match="'l2' is not one of rms, layer, mean"):
        NormKind("l2")
    with pytest.raises(ValueError, match="'top' is not one of softmax, softmax_chosen, sigmoid, sqrtsoftplus"):
        RouterKind("top")
