"""Logits of a whole text at once, by plain attention, and a model with one of everything."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.model_config.decoder_config import DecoderConfig, RopeConfig
from jaxinfer.models.loaded import LoadedModel

CONFIG = DecoderConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=384,
    num_layers=6,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    max_position_embeddings=128,
    windows=(8, None, None) * 2,
    rope=RopeConfig("linear", 10000.0, 2.0),
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    qk_norm=True,
)
TOKENS = np.random.default_rng(0).integers(0, 256, 24)


def dense_logits(model: LoadedModel, tokens: np.ndarray) -> np.ndarray:
    """Logits by plain attention over this call's tokens; kv counts how often each layer of each group was reached."""
    config = model.config

    def attend(q, k, v, kv, group, layer):
        window = config.kv_groups[group].window
        distance = jnp.arange(len(tokens))[:, None] - jnp.arange(len(tokens))
        seen = (distance >= 0) & (distance < (window or len(tokens)))
        q = q.reshape(len(tokens), config.num_kv_heads, config.group_size, -1)
        scores = jnp.einsum("tkgd,skd->kgts", q, k) * config.attention_scale
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
        out = jnp.einsum("kgts,skd->tkgd", weights, v).reshape(len(tokens), config.num_heads, -1)
        return out, (*kv[:group], kv[group].at[layer].add(1), *kv[group + 1 :])

    def forward(weights, head, tokens):
        decoder = model.build(weights)
        counts = tuple(jnp.zeros(len(group.layers)) for group in config.kv_groups)
        hidden, counts = decoder(tokens, jnp.arange(len(tokens)), counts, attend)
        return model.logits(head, decoder.final_norm(hidden)), counts

    logits, counts = jax.jit(forward)(model.weights, model.head, tokens)
    for count in counts:
        np.testing.assert_array_equal(count, 1)
    return np.asarray(logits)
