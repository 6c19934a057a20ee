"""Layers with experts against a float64 oracle that loops over tokens and experts, and knows no sorting."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxinfer.layers.context import LayerContext
from jaxinfer.layers.dispatch import Dispatch
from jaxinfer.layers.experts import Experts, route
from jaxinfer.layers.param import QuantizedParam
from jaxinfer.layers.vectors import layer_vectors
from jaxinfer.model_config.layer_kind import AttentionKind, LayerKind
from jaxinfer.model_config.mlp_kind import Clamp, ExpertsKind, RouterKind
from jaxinfer.quantization.scheme import LayerSchemes

HIDDEN, SIZE = 24, 32
DEEPSEEK = RouterKind("sigmoid", choice_bias=True, groups=4, top_groups=2, normalise=True, scale=2.5)
KINDS = {
    "softmax": ExpertsKind(8, 2, SIZE),
    "softmax, normalised": ExpertsKind(8, 3, SIZE, RouterKind(normalise=True)),
    "softmax over the chosen": ExpertsKind(8, 2, SIZE, RouterKind("softmax_chosen", scale=0.5)),
    "router bias": ExpertsKind(8, 2, SIZE, RouterKind("softmax_chosen", bias=True)),
    "sigmoid": ExpertsKind(8, 2, SIZE, RouterKind("sigmoid")),
    "choice bias": ExpertsKind(8, 2, SIZE, RouterKind("sigmoid", choice_bias=True, normalise=True)),
    "groups": ExpertsKind(16, 3, SIZE, DEEPSEEK),
    "shared": ExpertsKind(8, 2, SIZE, shared=40),
    "gated shared": ExpertsKind(8, 2, SIZE, shared=40, shared_gate=True),
    "one chosen": ExpertsKind(4, 1, SIZE),
    "all chosen": ExpertsKind(4, 4, SIZE),
    "more experts than rows": ExpertsKind(64, 2, SIZE),
}
MLPS = {
    **KINDS,
    "biases": ExpertsKind(8, 2, SIZE, activation="gelu", bias=True),
    "gpt-oss": replace(KINDS["router bias"], bias=True, clamp=Clamp(1.702, 0.6)),
}
ROWS = 9
LEAD = 3


def made(
    kind: ExpertsKind, dtype: Any = jnp.float32, lead: tuple[int, ...] = ()
) -> tuple[Experts, dict[str, jax.Array]]:
    """A layer of random weights, and its vectors. Of `lead` layers the last has the weights that it has alone."""
    rng = np.random.default_rng(0)
    graph, state = nnx.split(Experts(kind, LayerSchemes(), HIDDEN, dtype, lead))

    def weight(leaf: Any) -> jax.Array:
        own = jnp.asarray(rng.standard_normal(leaf.shape[len(lead) :]) * 0.4, leaf.dtype)
        return jnp.zeros(leaf.shape, leaf.dtype).at[(-1,) * len(lead)].set(own) if lead else own

    found = layer_vectors(LayerKind(AttentionKind(2, 1, 8), kind), HIDDEN)
    names = ("router_bias", "choice_bias", "experts_gate_up_bias", "experts_down_bias")
    layer = nnx.merge(graph, jax.tree.map(weight, state))
    return layer, {n: jnp.asarray(rng.standard_normal(found[n].shape), dtype) for n in names if n in found}


def rows(count: int = ROWS, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).standard_normal((count, HIDDEN)), dtype)


def wide(array: Any) -> np.ndarray:
    return np.asarray(jnp.asarray(array, jnp.float32), np.float64)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum()


def oracle_route(kind: ExpertsKind, scores: np.ndarray, bias: np.ndarray | None) -> dict[int, float]:
    """scores [E] of one token, to the weight of each expert that it chooses."""
    router = kind.router
    if router.scoring == "softmax_chosen":
        best = sorted(range(kind.count), key=lambda e: -scores[e])[: kind.chosen]
        return dict(zip(best, softmax(scores[best]) * router.scale, strict=True))
    odds = softmax(scores) if router.scoring == "softmax" else sigmoid(scores)
    ranked = odds if bias is None else odds + bias
    size = kind.count // router.groups
    groups = [range(g * size, (g + 1) * size) for g in range(router.groups)]
    if router.groups > 1:
        groups.sort(key=lambda group: -sum(sorted(ranked[e] for e in group)[-2:]))
    allowed = [e for group in groups[: router.top_groups] for e in group]
    best = sorted(allowed, key=lambda e: -ranked[e])[: kind.chosen]
    total = sum(odds[e] for e in best) if router.normalise else 1.0
    return {e: odds[e] / total * router.scale for e in best}


def activated(kind: ExpertsKind, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    if kind.clamp is not None:
        gate, up = np.minimum(gate, kind.clamp.limit), np.clip(up, -kind.clamp.limit, kind.clamp.limit)
        return gate * sigmoid(kind.clamp.alpha * gate) * (up + 1)
    if kind.activation == "gelu":
        return wide(jax.nn.gelu(jnp.asarray(gate, jnp.float32), approximate=False)) * up
    return gate * sigmoid(gate) * up


def halves(gate_up: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[channels / B, 2, B, …] to gate and up [channels, …], channel by channel."""
    blocks, _, block = gate_up.shape[:3]
    places = [(c // block, c % block) for c in range(blocks * block)]
    return np.stack([gate_up[b, 0, i] for b, i in places]), np.stack([gate_up[b, 1, i] for b, i in places])


def values(parameter: nnx.Param | QuantizedParam) -> np.ndarray:
    """What a plain one holds."""
    assert isinstance(parameter, nnx.Param)
    return wide(parameter[...])


def oracle(layer: Experts, vectors: Mapping[str, jax.Array], x: jax.Array) -> np.ndarray:
    """The layer's result, [T, hidden]."""
    kind = layer.kind
    known = {name: wide(array) for name, array in vectors.items()}
    router, gate_up, down = map(values, (layer.router, layer.experts_gate_up, layer.experts_down))
    out = []
    for row in wide(x):
        scores = router @ row + known.get("router_bias", 0.0)
        result = shared(layer, row)
        for expert, weight in oracle_route(kind, scores, known.get("choice_bias")).items():
            gate, up = (half @ row for half in halves(gate_up[expert]))
            if kind.bias:
                gate_bias, up_bias = halves(known["experts_gate_up_bias"][expert])
                gate, up = gate + gate_bias, up + up_bias
            inner = down[expert] @ activated(kind, gate, up)
            result = result + weight * (inner + (known["experts_down_bias"][expert] if kind.bias else 0.0))
        out.append(result)
    return np.stack(out)


def shared(layer: Experts, row: np.ndarray) -> np.ndarray:
    """What the MLP beside the experts gives for one row [hidden]."""
    if layer.shared is None:
        return np.zeros(HIDDEN)
    gate, up = (half @ row for half in halves(values(layer.shared.gate_up)))
    out = values(layer.shared.down) @ (gate * sigmoid(gate) * up)
    return out * sigmoid(values(layer.shared_router) @ row) if layer.kind.shared_gate else out


def run(layer: Experts, vectors: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    graph, state = nnx.split(layer)
    return jax.jit(lambda state, x: nnx.merge(graph, state)(x, context(vectors, x))[0])(state, x)


def context(vectors: Mapping[str, jax.Array], x: jax.Array, real: jax.Array | None = None) -> LayerContext:
    return LayerContext(vectors, jnp.arange(len(x)), Dispatch(real=real))


def error(found: Any, right: np.ndarray) -> float:
    return float(np.abs(wide(found) - right).max() / np.abs(right).max())


@pytest.mark.few(4)
@pytest.mark.parametrize("name", MLPS)
def test_a_layer_gives_what_the_oracle_does(name: str) -> None:
    layer, vectors = made(MLPS[name])
    assert error(run(layer, vectors, rows()), oracle(layer, vectors, rows())) < 1e-5


@pytest.mark.parametrize("name", ["softmax", "gpt-oss", "groups", "gated shared"])
def test_a_layer_of_a_stack_is_that_layer(name: str) -> None:
    """Leaves have an axis over layers before all others."""
    stacked, _ = made(MLPS[name], lead=(LEAD,))
    graph, state = nnx.split(stacked)
    last = nnx.merge(graph, jax.tree.map(lambda leaf: leaf[-1], state))
    layer, vectors = made(MLPS[name])
    assert error(run(last, vectors, rows()), oracle(layer, vectors, rows())) < 1e-5


@pytest.mark.parametrize("count", [1, 200])
def test_rows_may_be_one_or_many(count: int) -> None:
    layer, vectors = made(MLPS["softmax, normalised"])
    x = rows(count)
    assert error(run(layer, vectors, x), oracle(layer, vectors, x)) < 1e-5


def test_rows_that_all_choose_the_same_experts_leave_the_others_empty() -> None:
    layer, vectors = made(MLPS["router bias"])
    vectors["router_bias"] = vectors["router_bias"].at[jnp.array([2, 5])].set(100.0)
    x = rows(40)
    assert error(run(layer, vectors, x), oracle(layer, vectors, x)) < 1e-5


@pytest.mark.parametrize("name", ["softmax", "gpt-oss", "gated shared"])
def test_a_layer_in_bfloat16(name: str) -> None:
    layer, vectors = made(MLPS[name], jnp.bfloat16)
    x = rows(dtype=jnp.bfloat16)
    found = run(layer, vectors, x)
    assert found.dtype == jnp.bfloat16
    assert error(found, oracle(layer, vectors, x)) < 2e-2


def test_products_are_kept_in_the_type_of_rows_and_combined_in_float32() -> None:
    layer, vectors = made(ExpertsKind(64, 64, SIZE), jnp.bfloat16)
    x = rows(dtype=jnp.bfloat16)
    jaxpr = str(jax.make_jaxpr(lambda x: layer(x, context(vectors, x)))(x))
    assert f"bf16[{ROWS * 64},{2 * SIZE}]" in jaxpr
    assert f"f32[{ROWS},64,{HIDDEN}]" in jaxpr
    assert f"f32[{ROWS * 64},{2 * SIZE}]" not in jaxpr


@pytest.mark.parametrize("name", ["groups", "choice bias", "softmax over the chosen"])
def test_routes_are_the_oracles(name: str) -> None:
    kind = KINDS[name]
    rng = np.random.default_rng(2)
    scores = rng.standard_normal((50, kind.count)).astype(np.float32)
    bias = rng.standard_normal(kind.count).astype(np.float32) if kind.router.choice_bias else None
    chosen, weights = jax.jit(lambda s: route(kind, s, None if bias is None else jnp.asarray(bias)))(scores)
    for row, experts, weighed in zip(scores, np.asarray(chosen), np.asarray(weights), strict=True):
        right = oracle_route(kind, row.astype(np.float64), bias)
        assert set(experts) == set(right)
        np.testing.assert_allclose(weighed, [right[e] for e in experts], rtol=1e-5)


def test_experts_of_groups_that_are_not_the_best_are_never_chosen() -> None:
    """Also where all that is left ranks below 0."""
    kind = replace(KINDS["groups"], chosen=8)
    scores = jnp.asarray(np.random.default_rng(3).standard_normal((20, kind.count)), jnp.float32)
    bias = np.full(kind.count, -5.0)
    chosen = np.asarray(route(kind, scores, jnp.asarray(bias))[0])
    right = [oracle_route(kind, row, bias) for row in np.asarray(scores, np.float64)]
    assert [set(row) for row in chosen.tolist()] == [set(row) for row in right]


@pytest.mark.long
def test_padding_goes_to_no_expert_and_is_not_counted() -> None:
    layer, vectors = made(MLPS["softmax"])
    x, real = rows(12), np.arange(12) % 3 > 0
    out, sizes = layer(x, context(vectors, x, jnp.asarray(real)))
    assert error(out[real], oracle(layer, vectors, x[real])) < 1e-5
    assert not np.asarray(out)[~real].any()
    router = wide(layer.router[...])
    right = [expert for row in wide(x[real]) for expert in oracle_route(KINDS["softmax"], router @ row, None)]
    assert np.asarray(sizes).tolist() == np.bincount(right, minlength=8).tolist()
