"""Experts: a router sends every token to a few of many MLPs, whose products are matmuls of rows sorted by expert."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxinfer_kernels.grouped_matmul import grouped_matmul

from jaxinfer.layers.linear import flattened, product
from jaxinfer.layers.mlp import Mlp, gate_up_param, gated
from jaxinfer.layers.param import Matrix, held, matrix, param, value
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind, RouterKind
from jaxinfer.quantization.array import QuantizedArray
from jaxinfer.quantization.product import quantized_grouped_product
from jaxinfer.quantization.scheme import LayerSchemes


class Dispatch(NamedTuple):
    """How a step's rows go to experts. backend: of `grouped_matmul`. real: [T] bool, rows that are not padding, which
    goes to no expert; None: all are real."""

    backend: str = "xla"
    real: jax.Array | None = None


_ALL = Dispatch()


class Experts(nnx.Module):
    """The MLP of a layer with experts.

    router: [E, hidden]. experts_gate_up: [E, ff / B, 2, B, hidden], experts_down: [E, hidden, ff], as of `Mlp`.
    shared: an Mlp beside them, shared_router: [1, hidden], where the kind has those. `lead` axes come before.
    """

    def __init__(self, kind: MlpKind, schemes: LayerSchemes, hidden: int, dtype: jnp.dtype, lead: tuple[int, ...] = ()):
        experts = _experts(kind)
        self.kind = kind
        axes = ("layers",) * len(lead)
        count, ff = experts.count, experts.size
        self.router = param((*lead, count, hidden), (*axes, None, "embed"), dtype, hidden**-0.5)
        self.experts_gate_up = gate_up_param(
            ff, hidden, dtype, (*lead, count), (*axes, "expert"), schemes.experts_gate_up, "expert_mlp"
        )
        down, down_axes = (*lead, count, hidden, ff), (*axes, "expert", "embed", "expert_mlp")
        self.experts_down = matrix(down, down_axes, dtype, ff**-0.5, schemes.experts_down)
        of_shared = LayerSchemes(gate_up=schemes.shared_gate_up, down=schemes.shared_down)
        self.shared = (
            Mlp(MlpKind(experts.shared, kind.activation), of_shared, hidden, dtype, lead) if experts.shared else None
        )
        if experts.shared_gate:
            self.shared_router = param((*lead, 1, hidden), (*axes, None, "embed"), dtype, hidden**-0.5)

    def __call__(
        self, x: jax.Array, vectors: Mapping[str, jax.Array], dispatch: Dispatch = _ALL
    ) -> tuple[jax.Array, jax.Array]:
        """x [T, hidden] to [T, hidden], and how many rows each expert got, [E] int32.

        vectors: router_bias, choice_bias, experts_gate_up_bias, experts_down_bias, if any.
        """
        experts = _experts(self.kind)
        scores = product(x, value(self.router))
        if "router_bias" in vectors:
            scores = scores + vectors["router_bias"].astype(jnp.float32)
        chosen, weights = route(experts, scores, vectors.get("choice_bias"))
        if dispatch.real is not None:
            chosen = jnp.where(dispatch.real[:, None], chosen, experts.count)
        flat = chosen.reshape(-1)
        sizes = jnp.zeros(experts.count, jnp.int32).at[flat].add(1, mode="drop")
        out = self._chosen(x, _Rows(flat, sizes, dispatch.backend), weights, vectors)
        return (out if self.shared is None else out + self._shared(x)), sizes

    def _chosen(self, x: jax.Array, rows: "_Rows", weights: jax.Array, vectors: Mapping[str, jax.Array]) -> jax.Array:
        """x [T, hidden] through the experts of each row, weighed by weights [T, k] float32."""
        gate_up, down = held(self.experts_gate_up), held(self.experts_down)
        count, hidden = down.shape[0], down.shape[1]
        order = jnp.argsort(rows.experts, stable=True)
        expert = jnp.minimum(rows.experts[order], count - 1)  # whose biases: of rows of none it does not matter
        inner = rows.multiply(x[order // weights.shape[1]], flattened(gate_up, 1))
        inner = inner.reshape(-1, *gate_up.shape[1:-1])
        if "experts_gate_up_bias" in vectors:
            inner = inner + vectors["experts_gate_up_bias"][expert].astype(inner.dtype)
        inner = gated(self.kind, inner)
        out = rows.multiply(inner.reshape(len(order), -1), down)
        if "experts_down_bias" in vectors:
            out = out + vectors["experts_down_bias"][expert].astype(out.dtype)
        back = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype))
        each = out[back].reshape(*weights.shape, hidden).astype(jnp.float32)
        return jnp.einsum("tkd,tk->td", each, weights, precision=jax.lax.Precision.HIGHEST).astype(x.dtype)

    def _shared(self, x: jax.Array) -> jax.Array:
        assert self.shared is not None
        out = self.shared(x, {})
        if not _experts(self.kind).shared_gate:
            return out
        return (jax.nn.sigmoid(product(x, value(self.shared_router))) * out.astype(jnp.float32)).astype(x.dtype)


class _Rows(NamedTuple):
    """A row for each expert that a token has chosen: its expert, [T * k] int32, E for none; rows of each expert, [E]
    int32."""

    experts: jax.Array
    sizes: jax.Array
    backend: str

    def multiply(self, x: jax.Array, weights: Matrix) -> jax.Array:
        """x [T * k, K], sorted by expert, times the weights [E, N, K] of each row's expert; 0 for rows of none."""
        if isinstance(weights, QuantizedArray):
            return quantized_grouped_product(x, weights, self.sizes, self.backend)
        return grouped_matmul(x, weights, self.sizes, backend=self.backend)


def route(kind: ExpertsKind, scores: jax.Array, choice_bias: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """scores [T, E] float32, the router's product, to the experts of every token [T, k] int32 and their weights
    [T, k] float32."""
    router = kind.router
    if router.scoring == "softmax_chosen":
        best, chosen = jax.lax.top_k(scores, kind.chosen)
        return chosen, jax.nn.softmax(best, axis=-1) * router.scale
    odds = jax.nn.softmax(scores, axis=-1) if router.scoring == "softmax" else jax.nn.sigmoid(scores)
    ranked = odds if choice_bias is None else odds + choice_bias
    if router.groups > 1:
        ranked = _best_groups(router, ranked)
    chosen = jax.lax.top_k(ranked, kind.chosen)[1]
    weights = jnp.take_along_axis(odds, chosen, axis=-1)
    if router.normalise:
        weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + _NO_SUM)
    return chosen, weights * router.scale


_NO_SUM = 1e-20
"""Added to sums of weights, which may be 0, as DeepSeek-V3's code does."""


def _best_groups(router: RouterKind, ranked: jax.Array) -> jax.Array:
    """ranked [T, E], with what is not in the best groups of its token made -inf."""
    grouped = ranked.reshape(len(ranked), router.groups, -1)
    of_group = jnp.sum(jax.lax.top_k(grouped, min(2, grouped.shape[-1]))[0], axis=-1)
    best = jax.lax.top_k(of_group, router.top_groups)[1]
    kept = jnp.zeros(of_group.shape, bool).at[jnp.arange(len(ranked))[:, None], best].set(True)
    return jnp.where(kept[:, :, None], grouped, -jnp.inf).reshape(ranked.shape)


def _experts(kind: MlpKind) -> ExpertsKind:
    assert kind.experts is not None
    return kind.experts
