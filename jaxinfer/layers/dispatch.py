"""Dispatch: how a step's rows come to their experts, on one device and over a mesh.

The products are matmuls of rows sorted by expert. On a mesh they run in shard_map, each device with its own experts, or
with some channels of each, or both: a kernel is one device's program, which XLA cannot split.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxinfer_kernels.stack import StackLayer

from jaxinfer.layers.exchange import exchanged
from jaxinfer.layers.gating import gated
from jaxinfer.layers.linear import GroupedLinear
from jaxinfer.layers.param import Matrix
from jaxinfer.model_config.mlp_kind import ExpertsKind
from jaxinfer.parallel.per_device import per_device
from jaxinfer.parallel.rules import Split
from jaxinfer.parallel.shards import spec
from jaxinfer.quantization.array import QuantizedArray, weight_spec

DispatchForm = Literal["reduce", "exchange"]
DISPATCH_FORMS: tuple[DispatchForm, ...] = get_args(DispatchForm)
"""`reduce`: each device takes all rows, computes those of its own experts, and results are added up. `exchange`: each
device takes a part of the rows, sends them where their experts are, and gets the results back."""


class ExpertShards(NamedTuple):
    """Mesh axes over which devices share experts: axes of experts, of their channels and of hidden states.

    ragged: rows are exchanged by ragged_all_to_all; otherwise each device gets as many rows as it may be sent at most.
    """

    mesh: Mesh
    expert: Split
    channels: Split
    embed: Split
    form: DispatchForm = "reduce"
    ragged: bool = False


class Dispatch(NamedTuple):
    """Way of a step's rows to experts. backend: of `grouped_matmul`. real: [T] bool, False for padding, which goes to
    no expert; None: all rows are real. shards: of a mesh; None: there is one device."""

    backend: str = "xla"
    real: jax.Array | None = None
    shards: ExpertShards | None = None


class ExpertWeights(NamedTuple):
    """gate_up: [E, ff / B, 2, B, hidden], down: [E, hidden, ff]; their biases: [E, ff / B, 2, B], [E, hidden]."""

    gate_up: Matrix
    down: Matrix
    gate_up_bias: jax.Array | None
    down_bias: jax.Array | None


class Routed(NamedTuple):
    """x: [T, hidden]. chosen: [T, k] int32, the experts of each row, E for none. weights: [T, k] float32, of those."""

    x: jax.Array
    chosen: jax.Array
    weights: jax.Array


def through_experts(kind: ExpertsKind, held: ExpertWeights, routed: Routed, dispatch: Dispatch) -> jax.Array:
    """The results of each row's experts, weighed and added: [T, hidden] in x's type."""
    shards = dispatch.shards
    if shards is None:
        each = _Experts(kind, held, dispatch.backend).results(routed.x, routed.chosen.reshape(-1))
        return _weighed(each, routed.weights).astype(routed.x.dtype)
    run = _exchanging if shards.form == "exchange" and shards.expert else _reducing
    return run(kind, held, routed, dispatch.backend, shards)


class _Experts(NamedTuple):
    """The experts of one device, or its part of them. channels, embed: mesh axes that those are split over."""

    kind: ExpertsKind
    held: ExpertWeights
    backend: str
    channels: Split = ()
    embed: Split = ()

    def results(self, x: jax.Array, experts: jax.Array) -> jax.Array:
        """Row r of the result [R, hidden] is expert experts[r]'s of x[r // (R / T)], x being [T, hidden]; experts: [R]
        int32, numbered as they lie here. 0 for rows of none, whose number is that of all experts. Where channels are
        split, it is one device's part of a sum."""
        count, each = self.held.down.shape[0], len(experts) // len(x)
        order = jnp.argsort(experts, stable=True)
        expert = experts[order]
        sizes = jnp.zeros(count, jnp.int32).at[experts].add(1, mode="drop")
        inner = GroupedLinear(self.held.gate_up, self.backend, self.embed)(x[order // each], sizes)
        if self.embed:
            inner = jax.lax.psum(inner, self.embed)
        inner = inner.reshape(-1, *self.held.gate_up.shape[1:-1])
        if self.held.gate_up_bias is not None:
            inner = inner + self.held.gate_up_bias[jnp.minimum(expert, count - 1)].astype(inner.dtype)
        inner = gated(self.kind, inner)
        down = GroupedLinear(self.held.down, self.backend, self.channels)
        out = down(inner.reshape(len(order), -1), sizes)
        if self.held.down_bias is not None:
            adds, bias = self._adds_bias(expert < count), self.held.down_bias[jnp.minimum(expert, count - 1)]
            out = out + jnp.where(adds, bias, 0).astype(out.dtype)
        back = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype))
        return out[back]

    def _adds_bias(self, of_one: jax.Array) -> jax.Array:
        """Return the rows that get a bias, [R, 1] bool. If devices' parts are added up, only the first adds it. of_one:
        [R] bool, rows that have an expert."""
        first = jax.lax.axis_index(self.channels) == 0 if self.channels else True
        return (of_one & first)[:, None]


def _weighed(each: jax.Array, weights: jax.Array) -> jax.Array:
    """Results [T * k, hidden] of k experts a row, to their weighed sums, [T, hidden] float32."""
    each = each.reshape(*weights.shape, -1).astype(jnp.float32)
    return jnp.einsum("tkd,tk->td", each, weights, precision=jax.lax.Precision.HIGHEST)


def _reducing(kind: ExpertsKind, held: ExpertWeights, routed: Routed, backend: str, shards: ExpertShards) -> jax.Array:
    """One reduction, in x's type, over all devices that have experts or channels of their own."""
    over = (*shards.expert, *shards.channels)

    def local(held: ExpertWeights, routed: Routed) -> jax.Array:
        count = held.down.shape[0]
        here = routed.chosen.reshape(-1) - (jax.lax.axis_index(shards.expert) * count if shards.expert else 0)
        here = jnp.where((here >= 0) & (here < count), here, count)
        each = _Experts(kind, held, backend, shards.channels, shards.embed).results(routed.x, here)
        out = _weighed(each, routed.weights).astype(routed.x.dtype)
        return jax.lax.psum(out, over) if over else out

    return _shard_map(local, shards, (_specs(held, shards), _rows(shards)))(held, routed)


def _exchanging(
    kind: ExpertsKind, held: ExpertWeights, routed: Routed, backend: str, shards: ExpertShards
) -> jax.Array:
    """Each device along the axes of experts takes as many rows, and at the end all get all results.

    It takes them here: of rows that lie on the devices already, XLA would split all that is computed before and after.
    """
    (rows, _), parts = routed.chosen.shape, math.prod(shards.mesh.shape[name] for name in shards.expert)
    total, spare = held.down.shape[0], -rows % parts
    padded = Routed(*(jnp.pad(x, ((0, spare), (0, 0))) for x in routed))
    padded = padded._replace(chosen=jnp.pad(routed.chosen, ((0, spare), (0, 0)), constant_values=total))

    def local(held: ExpertWeights, routed: Routed) -> jax.Array:
        of_part = routed.chosen.reshape(parts, -1)
        counts = jnp.zeros((parts, total), jnp.int32).at[jnp.arange(parts)[:, None], of_part].add(1, mode="drop")
        results = _Experts(kind, held, backend, shards.channels, shards.embed).results
        me, each = jax.lax.axis_index(shards.expert), len(of_part[0]) // routed.chosen.shape[1]
        own = Routed(*(jax.lax.dynamic_slice_in_dim(x, me * each, each) for x in routed))
        found = exchanged(own.x, own.chosen.reshape(-1), counts, results, shards.expert, shards.ragged)
        out = _weighed(found, own.weights).astype(own.x.dtype)
        if shards.channels:
            out = jax.lax.psum(out, shards.channels)
        return jax.lax.all_gather(out, shards.expert, axis=0, tiled=True)

    return _shard_map(local, shards, (_specs(held, shards), _rows(shards)))(held, padded)[:rows]


def _rows(shards: ExpertShards) -> Routed:
    """Specs of rows that every device has."""
    found: list[Any] = [spec((), shards.embed), spec(), spec()]
    return Routed(*found)


def _shard_map(local: Callable[..., jax.Array], shards: ExpertShards, places: Any) -> Callable[..., jax.Array]:
    out = spec((), shards.embed)
    return per_device(local, shards.mesh, places, out)


def _specs(held: ExpertWeights, shards: ExpertShards) -> ExpertWeights:
    """A PartitionSpec in place of each array."""
    expert, channels, embed = shards.expert, shards.channels, shards.embed
    found: list[Any] = [
        _matrix_specs(held.gate_up, (expert, channels, (), (), embed)),
        _matrix_specs(held.down, (expert, embed, channels)),
        None if held.gate_up_bias is None else spec(expert, channels),
        None if held.down_bias is None else spec(expert, embed),
    ]
    return ExpertWeights(*found)


def _matrix_specs(weight: Matrix, axes: tuple[Split, ...]) -> QuantizedArray | StackLayer | PartitionSpec:
    return weight.specs(axes, lead=1) if isinstance(weight, QuantizedArray) else weight_spec(weight, *axes)
