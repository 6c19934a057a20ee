"""Logits of a whole text at once, by plain attention, and a model with one of everything."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.layers.attention import Heads
from jaxinfer.layers.dispatch import Dispatch
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import AttentionKind, NormKind
from jaxinfer.model_config.mlp_kind import MlpKind
from jaxinfer.model_config.rope_config import RopeConfig
from jaxinfer.models.decoder import Attend, Place
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.quantization.kv import KVCodes
from tests.model_config.uniform import uniform_decoder

CONFIG = uniform_decoder(
    AttentionKind(
        num_heads=6,
        num_kv_heads=2,
        head_dim=16,
        rope=RopeConfig("linear", 10000.0, 2.0),
        qkv_bias=True,
        out_bias=True,
        qk_norm=NormKind(),
    ),
    MlpKind(384, bias=True),
    windows=(8, None, None) * 2,
    vocab_size=256,
    hidden_size=64,
    max_position_embeddings=128,
)
_BY_XLA = Dispatch()
TOKENS = np.random.default_rng(0).integers(0, 256, 24)


def dense_logits(model: LoadedModel, tokens: np.ndarray, dispatch: Dispatch = _BY_XLA) -> np.ndarray:
    """Logits by plain attention over this call's tokens; kv counts how often each layer of each group was reached.

    dispatch: by default experts are multiplied by `xla`, whatever the model's backend.
    """
    config, attention = model.config, dense_attention(model.config)

    def attend(heads, kv, place):
        group, layer, _ = place
        out, _ = attention(heads, kv, place)
        return out, (*kv[:group], kv[group].at[layer].add(1), *kv[group + 1 :])

    def forward(weights, head, tokens):
        decoder = model.build(weights)
        counts = tuple(jnp.zeros(len(group.layers)) for group in config.kv_groups)
        out = decoder.run(tokens, jnp.arange(len(tokens)), counts, None, attend, dispatch)
        return model.logits(head, decoder.final_norm(out.hidden)), out.kv

    logits, counts = jax.jit(forward)(model.weights, model.head, tokens)
    for count in counts:
        np.testing.assert_array_equal(count, 1)
    return np.asarray(logits)


def dense_attention(config: DecoderConfig) -> Attend:
    """Plain attention over a call's tokens, which are one text; keeps no KV."""

    def attend(heads: Heads, kv: Any, place: Place) -> tuple[jax.Array, Any]:
        q, k, v, sinks, scales = heads
        k, v = (_kept(x, i, scales, config.kv_groups[place.group].kv.codes) for i, x in enumerate((k, v)))
        window, scoring = config.kv_groups[place.group].window, place.scoring
        distance = jnp.arange(len(q))[:, None] - jnp.arange(len(q))
        seen = (distance >= 0) & (distance < (window or len(q)))
        k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
        scores = jnp.einsum("thd,shd->hts", q, k, precision="highest") * scoring.scale
        if scoring.soft_cap is not None:
            scores = scoring.soft_cap * jnp.tanh(scores / scoring.soft_cap)
        scores = jnp.where(seen, scores, -jnp.inf)
        if sinks is not None:
            scores = jnp.concatenate([scores, jnp.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))], axis=-1)
        weights = jax.nn.softmax(scores, axis=-1)[..., : len(q)]
        return jnp.einsum("hts,shd->thd", weights, v, precision="highest"), kv

    return attend


def _kept(x: jax.Array, side: int, scales: jax.Array | None, codes: KVCodes | None) -> jax.Array:
    """What is read again of keys (side 0) or values."""
    if codes is None:
        return x
    scaled = x if scales is None else x / scales[side]
    if codes == "int8":
        kept = jnp.clip(jnp.round(scaled), -128, 127)
    else:
        most = float(jnp.finfo(codes).max)
        kept = jnp.clip(scaled, -most, most).astype(codes).astype(x.dtype)
    return kept if scales is None else kept * scales[side]
