"""The project's own Decoder, trained: parameters, dense causal attention, loss, greedy answers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike

from jaxinfer.layers.param import value
from jaxinfer.models.config import DecoderConfig
from jaxinfer.models.decoder import KV, Decoder, logits
from jaxinfer.models.registry import parse_config

Params = Any
"""nnx.State of the decoder, float32."""


def raw_config(vocab_size: int, eos_token_id: int) -> dict[str, Any]:
    """The model's config.json: about 1.5 million parameters."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab_size,
        "hidden_size": 160,
        "intermediate_size": 448,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 1024,
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

    def logits(self, params: Params, tokens: jax.Array) -> jax.Array:
        """tokens [B, T] to logits [B, T, vocabulary], float32."""
        decoder = nnx.merge(self._graph, params)
        batch, length = tokens.shape
        positions = jnp.tile(jnp.arange(length, dtype=jnp.int32), batch)
        attend = causal(batch, self.config.attention_scale)
        hidden, _ = decoder(tokens.reshape(-1), positions, (), attend)
        return logits((value(decoder.embed),), decoder.final_norm(hidden)).reshape(batch, length, -1)

    def loss(self, params: Params, tokens: ArrayLike, weights: ArrayLike) -> jax.Array:
        """Mean cross-entropy of tokens[:, 1:], in nats, weighted by `weights` [B, T]; tokens: [B, T + 1]."""
        tokens, weights = jnp.asarray(tokens), jnp.asarray(weights)
        logp = jax.nn.log_softmax(self.logits(params, tokens[:, :-1]))
        picked = jnp.take_along_axis(logp, tokens[:, 1:, None], axis=-1)[..., 0]
        return -jnp.sum(picked * weights) / jnp.sum(weights)

    def greedy(self, params: Params, prompt: list[int], stop: int, limit: int = 100) -> list[int]:
        """The most likely tokens after `prompt`, up to `stop`; without a cache, for a look at the result."""
        tokens = np.zeros((1, -(-(len(prompt) + limit) // 64) * 64), np.int32)
        tokens[0, : len(prompt)] = prompt
        step: Callable[..., jax.Array] = jax.jit(lambda p, t, at: jnp.argmax(self.logits(p, t)[0, at]))
        for at in range(len(prompt), len(prompt) + limit):
            tokens[0, at] = int(step(params, tokens.copy(), at - 1))
            if tokens[0, at] == stop:
                return tokens[0, len(prompt) : at].tolist()
        return tokens[0, len(prompt) : len(prompt) + limit].tolist()


def causal(batch: int, scale: float) -> Callable[..., tuple[jax.Array, KV]]:
    """Dense attention over `batch` sequences that lie one after another; it keeps no KV."""

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, kv: KV, *_: object) -> tuple[jax.Array, KV]:
        q, k, v = (x.reshape(batch, -1, *x.shape[1:]) for x in (q, k, v))
        out = jax.nn.dot_product_attention(q, k, v, scale=scale, is_causal=True)
        return out.reshape(-1, *out.shape[2:]), kv

    return attend
