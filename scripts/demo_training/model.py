"""The project's own Decoder, trained: parameters, dense attention over packed rows, loss."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from demo_training.tokens import Batch
from jaxinfer.layers.attention import Heads
from jaxinfer.layers.param import value
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.decoder import KV, Decoder, Place, logits

Params = Any
"""nnx.State of the decoder, float32."""


class Shape(NamedTuple):
    """Sizes of a model."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int


MODELS = {"target": Shape(192, 576, 6, 6, 2), "draft": Shape(96, 288, 3, 3, 1)}
"""About 3.1 and 0.6 million parameters with 2,560 entries of vocabulary."""


def raw_config(shape: Shape, vocab_size: int, eos_token_id: int) -> dict[str, Any]:
    """The model's config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


class Trainee:
    """A decoder whose parameters are passed in."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.config: DecoderConfig = parse_config(raw)
        self._graph, self._shapes = nnx.split(Decoder(self.config, jnp.dtype(jnp.float32)))

    def init(self, seed: int) -> Params:
        """Random parameters: the decoder's own scales, less in the embedding and in what adds to the residual."""
        keys = iter(jax.random.split(jax.random.key(seed), len(jax.tree.leaves(self._shapes))))
        depth = (2 * self.config.num_layers) ** -0.5

        def fill(path: tuple[Any, ...], variable: nnx.Variable) -> nnx.Variable:
            shape, std = variable.get_value().shape, variable.get_metadata()["std"]
            if std is None:
                return variable.replace(jnp.ones(shape))
            scale = {"embed": 0.02 / std, "out": depth, "down": depth}.get(path[-1], 1.0)
            return variable.replace(jax.random.normal(next(keys), shape) * std * scale)

        flat = {path: fill(path, variable) for path, variable in nnx.to_flat_state(self._shapes)}
        return nnx.from_flat_state(flat)

    def hidden(self, params: Params, tokens: jax.Array, positions: jax.Array, segments: jax.Array) -> jax.Array:
        """tokens, positions, segments [B, T] to hidden states [B * T, d], not yet normed."""
        decoder = nnx.merge(self._graph, params)
        attend = packed(segments)
        return decoder(tokens.reshape(-1), positions.reshape(-1), (), attend)[0]

    def head(self, params: Params, hidden: jax.Array) -> jax.Array:
        """hidden [S, d] to logits [S, vocabulary]."""
        decoder = nnx.merge(self._graph, params)
        assert isinstance(decoder.embed, nnx.Param)
        return logits(self.config, (value(decoder.embed),), decoder.final_norm(hidden))

    def logits(self, params: Params, tokens: jax.Array) -> jax.Array:
        """tokens [B, T], one text a row, to logits [B, T, vocabulary], float32."""
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
        hidden = self.hidden(params, tokens, positions, jnp.ones_like(tokens))
        return self.head(params, hidden).reshape(*tokens.shape, -1)

    def scored(self, params: Params, batch: Batch) -> jax.Array:
        """Logits [scored, vocabulary] of what has to be said."""
        hidden = self.hidden(params, *map(jnp.asarray, (batch.tokens, batch.positions, batch.segments)))
        return self.head(params, hidden[batch.at])

    def loss(self, params: Params, batch: Batch) -> jax.Array:
        """Mean cross-entropy of what has to be said, in nats a token."""
        scores = self.scored(params, batch)
        picked = jnp.take_along_axis(scores, jnp.asarray(batch.targets)[:, None], axis=-1)[:, 0]
        losses = jax.nn.logsumexp(scores, axis=-1) - picked
        return jnp.sum(losses * batch.weights) / jnp.sum(batch.weights)


def packed(segments: jax.Array) -> Callable[..., tuple[jax.Array, KV]]:
    """Dense causal attention over rows [B, T], within equal segments; it keeps no KV."""
    batch, length = segments.shape
    alike = segments[:, :, None] == segments[:, None, :]
    mask = alike & jnp.tril(jnp.ones((length, length), bool))
    bias = jnp.where(mask, 0.0, -1e9)[:, None, None]

    def attend(given: Heads, kv: KV, place: Place) -> tuple[jax.Array, KV]:
        q, k, v = given[:3]
        heads, dim = k.shape[1:]
        q = q.reshape(batch, length, heads, -1, dim).transpose(0, 2, 3, 1, 4)
        k, v = (x.reshape(batch, length, heads, dim).transpose(0, 2, 1, 3) for x in (k, v))
        scores = jnp.einsum("bhgtd,bhsd->bhgts", q, k) * place.scoring.scale + bias
        out = jnp.einsum("bhgts,bhsd->bhgtd", jax.nn.softmax(scores, axis=-1), v)
        return out.transpose(0, 3, 1, 2, 4).reshape(batch * length, -1, dim), kv

    return attend
