"""An EAGLE-3 head: one layer that reads a target's hidden states and its tokens, and drafts (arXiv:2503.01840)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxinfer_kernels.layouts import platform_layout

from jaxinfer.layers.attention import Attention
from jaxinfer.layers.context import LayerContext
from jaxinfer.layers.embedding import embed
from jaxinfer.layers.linear import Linear
from jaxinfer.layers.mlp import Mlp
from jaxinfer.layers.norm import norm
from jaxinfer.layers.param import Matrix, held, matrix, param, value
from jaxinfer.layers.rope import rotation
from jaxinfer.layers.stack import Repeats
from jaxinfer.model_config.eagle3 import Eagle3Config
from jaxinfer.model_config.mlp_kind import MlpKind
from jaxinfer.models import weight
from jaxinfer.models.decoder import KV, Attend, Head, Place
from jaxinfer.models.loaded import GroupBackend, LoadedModel
from jaxinfer.models.weight import Weight
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.rules import DEFAULT_RULES, ShardingRules

_NO_COLUMN = np.iinfo(np.int32).max
"""Column of those rows of the output matrix that belong to no token of the draft vocabulary."""


class Eagle3Head(nnx.Module):
    """A head without its output matrix.

    fc: [d, 3·D] over the target's hidden states of width D. Attention reads the normed embedding of a token beside the
    normed hidden state of the position before it: 2·d columns. embed: [vocab, d], where it is not the target's.
    """

    def __init__(self, config: Eagle3Config, dtype: jnp.dtype):
        decoder = config.decoder
        kind, hidden = decoder.layers[0], decoder.hidden_size
        inputs = len(config.layers) * config.target_hidden
        self.config, self.dtype, self.kind = config, jnp.dtype(dtype), kind
        self.fc = matrix((hidden, inputs), ("embed", None), dtype, inputs**-0.5, None)
        self.embed_norm, self.hidden_norm, self.mlp_norm, self.norm = (
            param((hidden,), ("embed",), dtype, None, kind.norm.offset) for _ in range(4)
        )
        self.attention = Attention(kind.mixer, kind.schemes, hidden, dtype, inputs=2 * hidden)
        assert isinstance(kind.mlp, MlpKind)
        self.mlp = Mlp(kind.mlp, kind.schemes, hidden, dtype)
        if config.own_embedding:
            rows = replace(decoder, vocab_size=config.vocab_size).table_shape
            self.embed = matrix(rows, ("vocab", "embed"), dtype, 3 * hidden**-0.5, None)

    def features(self, hidden: Sequence[jax.Array]) -> jax.Array:
        """The target's hidden states of each layer, [T, D] each, as one of the head's: [T, d]."""
        return Linear.of(self.fc)(jnp.concatenate(hidden, axis=-1).astype(self.dtype))

    def embedded(self, table: Matrix, tokens: jax.Array) -> jax.Array:
        """Tokens [T] int32 as [T, d]. table: the target's embedding."""
        return embed(held(self.embed) if self.config.own_embedding else table, tokens, self.dtype)

    def __call__(
        self, hidden: jax.Array, embedded: jax.Array, positions: jax.Array, kv: KV, attend: Attend
    ) -> tuple[jax.Array, KV]:
        """The next hidden states, [T, d], unnormed; and kv. hidden [T, d]: features, or what the head gave for the
        position before. embedded [T, d]: of the tokens after `positions`, [T] int32."""
        rotary = self.kind.mixer.rotary
        context = LayerContext({}, positions, rotation=None if rotary is None else rotation(*rotary, positions))
        normed = self._normed(self.hidden_norm, hidden)
        x = jnp.concatenate([self._normed(self.embed_norm, embedded), normed], axis=-1)
        out, kv = self.attention(x, context, lambda heads, scoring: attend(heads, kv, Place(0, jnp.int32(0), scoring)))
        x = (normed if self.config.norm_before_residual else hidden) + out
        return x + self.mlp(self._normed(self.mlp_norm, x), context)[0], kv

    def final_norm(self, hidden: jax.Array) -> jax.Array:
        """The norm before the output matrix, over rows [S, d]."""
        return self._normed(self.norm, hidden)

    def _normed(self, by: nnx.Param, x: jax.Array) -> jax.Array:
        return norm(self.kind.norm, x, value(by))


@dataclass(frozen=True, kw_only=True)
class Eagle3Model(LoadedModel):
    """A head on its devices. head: the output matrix [drafts, d], and the target's column of each row of it, int32."""

    eagle: Eagle3Config

    @property
    def structure(self) -> object:
        return self.eagle

    @property
    def feature_layers(self) -> tuple[int, ...]:
        return self.eagle.layers

    def build_head(self, weights: tuple[jax.Array, ...]) -> Eagle3Head:
        """The head over `weights`; for use inside jit."""
        return self.merged(weights)

    def target_logits(self, head: tuple[jax.Array, ...], hidden: jax.Array, columns: int) -> jax.Array:
        """Normed hidden [S, d] to float32 [S, columns], those of the target; -inf where the draft vocabulary lacks
        them."""
        found, places = self.logits(head[:1], hidden), head[1]
        return jnp.full((len(hidden), columns), -jnp.inf).at[:, places].set(found, mode="drop")


@dataclass(frozen=True)
class Eagle3Plan:
    """A head's structure without values. table: its output matrix."""

    config: Eagle3Config
    graph: nnx.GraphDef
    state: nnx.State
    weights: tuple[Weight, ...]
    table: Weight


def plan_eagle3(config: Eagle3Config, dtype: jnp.dtype) -> Eagle3Plan:
    """The structure of a head; allocates nothing."""
    graph, state = nnx.split(Eagle3Head(config, dtype))
    whole = Repeats(1)
    (table,) = weight.describe(nnx.state(Head(config.decoder, dtype)), whole, {})
    return Eagle3Plan(config, graph, state, weight.describe(state, whole, {}), table)


def assemble(
    plan: Eagle3Plan, arrays: Sequence[jax.Array], columns: np.ndarray, dtype: jnp.dtype, mesh: Mesh,
    rules: ShardingRules,
) -> Eagle3Model:  # fmt: skip
    """A head of its leaves, of which the output matrix is the last. columns: the target's id of each draft id."""
    rows = plan.table.shape[0]
    padded = np.full(rows, _NO_COLUMN, np.int32)
    padded[: len(columns)] = columns
    places = jax.device_put(padded, NamedSharding(mesh, PartitionSpec()))
    backend = GroupBackend("xla", platform_layout(mesh.devices.flat[0].platform))
    return Eagle3Model(
        plan.config.decoder, jnp.dtype(dtype), mesh, rules, plan.graph, jax.tree.structure(plan.state),
        tuple(arrays[:-1]), (arrays[-1], places), (backend,), eagle=plan.config,
    )  # fmt: skip


def random_eagle3(
    config: Eagle3Config,
    *,
    dtype: jnp.dtype,
    mesh: Mesh | None = None,
    rules: ShardingRules = DEFAULT_RULES,
    seed: int = 0,
) -> Eagle3Model:
    """A head with random weights, whose draft vocabulary is spread evenly over the target's. For tests."""
    plan, mesh = plan_eagle3(config, jnp.dtype(dtype)), mesh or make_mesh()
    arrays = [leaf for one in (*plan.weights, plan.table) for leaf in weight.random(one, seed, rules, mesh)]
    drafts = config.decoder.vocab_size
    columns = np.arange(drafts) * config.vocab_size // drafts
    return assemble(plan, arrays, columns, dtype, mesh, rules)
