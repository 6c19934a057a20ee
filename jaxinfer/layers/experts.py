"""Experts: a router sends every token to a few of many MLPs."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.dispatch import Dispatch, ExpertWeights, Routed, through_experts
from jaxinfer.layers.linear import product
from jaxinfer.layers.mlp import Mlp, gate_up_param
from jaxinfer.layers.param import held, matrix, param, value
from jaxinfer.layers.vectors import EXPERT_SLOTS
from jaxinfer.model_config.formulas import ROUTER_SCORINGS
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind, RouterKind
from jaxinfer.quantization.scheme import LayerSchemes

_ALL = Dispatch()


class Experts(nnx.Module):
    """The MLP of a layer with experts.

    router: [E, hidden]. experts_gate_up: [P, ff / B, 2, B, hidden], experts_down: [P, hidden, ff], as of `Mlp`, of P
    slots, which are experts, and copies of some.
    shared: an Mlp beside them, shared_router: [1, hidden], where the kind has those. `lead` axes come before.
    """

    def __init__(self, kind: MlpKind, schemes: LayerSchemes, hidden: int, dtype: jnp.dtype, lead: tuple[int, ...] = ()):
        experts = _experts(kind)
        self.kind = kind
        axes = ("layers",) * len(lead)
        count, slots, ff = experts.count, experts.slots, experts.size
        self.router = param((*lead, count, hidden), (*axes, None, "embed"), dtype, hidden**-0.5)
        self.experts_gate_up = gate_up_param(
            ff, hidden, dtype, (*lead, slots), (*axes, "expert"), schemes.experts_gate_up, "expert_mlp"
        )
        down, down_axes = (*lead, slots, hidden, ff), (*axes, "expert", "embed", "expert_mlp")
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
        """x [T, hidden] to [T, hidden], and how many rows each slot got, [P] int32.

        vectors: router_bias, choice_bias, experts_gate_up_bias, experts_down_bias, expert_slots, if any.
        """
        experts = _experts(self.kind)
        scores = product(x, value(self.router))
        if "router_bias" in vectors:
            scores = scores + vectors["router_bias"].astype(jnp.float32)
        chosen, weights = route(experts, scores, vectors.get("choice_bias"))
        if EXPERT_SLOTS in vectors:
            chosen = _slots(chosen, vectors[EXPERT_SLOTS])
        if dispatch.real is not None:
            chosen = jnp.where(dispatch.real[:, None], chosen, experts.slots)
        sizes = jnp.zeros(experts.slots, jnp.int32).at[chosen.reshape(-1)].add(1, mode="drop")
        out = through_experts(self.kind, self._weights(vectors), Routed(x, chosen, weights), dispatch)
        return (out if self.shared is None else out + self._shared(x)), sizes

    def _weights(self, vectors: Mapping[str, jax.Array]) -> ExpertWeights:
        biases = (vectors.get(f"experts_{name}_bias") for name in ("gate_up", "down"))
        return ExpertWeights(held(self.experts_gate_up), held(self.experts_down), *biases)

    def _shared(self, x: jax.Array) -> jax.Array:
        assert self.shared is not None
        out = self.shared(x, {})
        if not _experts(self.kind).shared_gate:
            return out
        return (jax.nn.sigmoid(product(x, value(self.shared_router))) * out.astype(jnp.float32)).astype(x.dtype)


def route(kind: ExpertsKind, scores: jax.Array, choice_bias: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """scores [T, E] float32, the router's product, to the experts of every token [T, k] int32 and their weights
    [T, k] float32."""
    router, scoring = kind.router, ROUTER_SCORINGS[kind.router.scoring]
    if scoring.of_chosen:
        best, chosen = jax.lax.top_k(scores, kind.chosen)
        return chosen, scoring.formula(jax, best) * router.scale
    odds = scoring.formula(jax, scores)
    ranked = odds if choice_bias is None else odds + choice_bias
    if router.groups > 1:
        ranked = _best_groups(router, ranked)
    chosen = jax.lax.top_k(ranked, kind.chosen)[1]
    weights = jnp.take_along_axis(odds, chosen, axis=-1)
    if router.normalise:
        weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + _NO_SUM)
    return chosen, weights * router.scale


def _slots(chosen: jax.Array, slots: jax.Array) -> jax.Array:
    """chosen [T, k], experts, to the slot of each, row after row to another copy. slots: [E, copies] int32, -1 where an
    expert has fewer."""
    copies = jnp.sum(slots >= 0, axis=1, dtype=jnp.int32)[chosen]
    return slots[chosen, jnp.arange(len(chosen), dtype=jnp.int32)[:, None] % copies]


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
