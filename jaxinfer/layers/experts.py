"""Experts: a router sends every token to a few of many MLPs."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.context import LayerContext
from jaxinfer.layers.dispatch import ExpertWeights, Routed, through_experts
from jaxinfer.layers.linear import Linear
from jaxinfer.layers.mlp import Mlp, gate_up_bias, gate_up_param
from jaxinfer.layers.param import Vector, held, matrix, param, value
from jaxinfer.model_config.formulas.router_scorings import ROUTER_SCORINGS
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind, RouterKind
from jaxinfer.quantization.scheme import LayerSchemes

EXPERT_SLOTS = "expert_slots"
"""The slots of each expert where some are copied: no checkpoint has them."""


class Experts(nnx.Module):
    """The MLP of a layer with experts.

    router: [E, hidden]. experts_gate_up: [P, ff / B, 2, B, hidden], experts_down: [P, hidden, ff], as of `Mlp`, of P
    slots, which are experts, and copies of some.
    shared: an Mlp beside them, shared_router: [1, hidden], where the kind has those. `lead` axes come before.
    """

    def __init__(
        self, kind: ExpertsKind, schemes: LayerSchemes, hidden: int, dtype: jnp.dtype, lead: tuple[int, ...] = ()
    ):
        self.kind = kind
        axes = ("layers",) * len(lead)
        count, slots, ff = kind.count, kind.slots, kind.size
        self.router = param((*lead, count, hidden), (*axes, None, "embed"), dtype, hidden**-0.5)
        self.experts_gate_up = gate_up_param(
            ff, hidden, dtype, (*lead, slots), (*axes, "expert"), schemes.experts_gate_up, "expert_mlp"
        )
        down, down_axes = (*lead, slots, hidden, ff), (*axes, "expert", "embed", "expert_mlp")
        self.experts_down = matrix(down, down_axes, dtype, ff**-0.5, schemes.experts_down)
        own = LayerSchemes(gate_up=schemes.shared_gate_up, down=schemes.shared_down)
        self.shared = Mlp(MlpKind(kind.shared, kind.activation), own, hidden, dtype, lead) if kind.shared else None
        if kind.shared_gate:
            self.shared_router = param((*lead, 1, hidden), (*axes, None, "embed"), dtype, hidden**-0.5)

    @staticmethod
    def vectors(kind: ExpertsKind, hidden: int) -> dict[str, Vector]:
        """Return the vectors of a layer with them, by name."""
        found = {}
        if kind.router.bias:
            found["router_bias"] = Vector((kind.count,), (None,), 0.1)
        if kind.router.choice_bias:
            found["choice_bias"] = Vector((kind.count,), (None,), 0.1, dtype="float32")
        if kind.redundant:
            found[EXPERT_SLOTS] = Vector((kind.count, kind.copies), (None, None), dtype="int32")
        if kind.bias:
            pair = gate_up_bias(kind.size, "expert_mlp")
            found["experts_gate_up_bias"] = Vector((kind.slots, *pair.shape), ("expert", *pair.axes), 0.1)
            found["experts_down_bias"] = Vector((kind.slots, hidden), ("expert", "embed"), 0.1)
        return found

    def __call__(self, x: jax.Array, context: LayerContext) -> tuple[jax.Array, jax.Array]:
        """x [T, hidden] to [T, hidden], and how many rows each slot got, [P] int32."""
        kind, vectors, dispatch = self.kind, context.vectors, context.dispatch
        scores = Linear(value(self.router), vectors.get("router_bias")).sums(x)
        chosen, weights = route(kind, scores, vectors.get("choice_bias"))
        if EXPERT_SLOTS in vectors:
            chosen = _slots(chosen, vectors[EXPERT_SLOTS])
        if dispatch.real is not None:
            chosen = jnp.where(dispatch.real[:, None], chosen, kind.slots)
        sizes = jnp.zeros(kind.slots, jnp.int32).at[chosen.reshape(-1)].add(1, mode="drop")
        biases = (vectors.get(f"experts_{name}_bias") for name in ("gate_up", "down"))
        matrices = ExpertWeights(held(self.experts_gate_up), held(self.experts_down), *biases)
        out = through_experts(kind, matrices, Routed(x, chosen, weights), dispatch)
        return (out if self.shared is None else out + self._shared(x, context)), sizes

    def _shared(self, x: jax.Array, context: LayerContext) -> jax.Array:
        assert self.shared is not None
        out, _ = self.shared(x, context)
        if not self.kind.shared_gate:
            return out
        gate = jax.nn.sigmoid(Linear(value(self.shared_router)).sums(x))
        return (gate * out.astype(jnp.float32)).astype(x.dtype)


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
