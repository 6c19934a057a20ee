"""Gemma 1 to 3, their texts: norms of 1 + w, a scaled embedding; from Gemma 2 on norms on both sides and windows."""

from dataclasses import replace
from typing import Any

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import (
    layers_by_window,
    read_activation,
    read_decoder,
    read_layer,
    read_layers,
    read_norm,
    typed_windows,
    with_windows,
)
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.model_config.rope import Rope, read_typed_ropes
from jaxinfer.model_config.tensor_names import TensorNames

_NAMES = TensorNames(mlp_norm="pre_feedforward_layernorm")
_HEAD_DIM, _QUERY_SCALAR, _WINDOW = 256, 256, 4096
_KV_HEADS_1, _KV_HEADS = 16, 4
_FULL, _SLIDING = "full_attention", "sliding_attention"
_THETAS = {_FULL: 1e6, _SLIDING: 1e4}
_EVERY = 6


def parse_gemma(config: ConfigReader) -> DecoderConfig:
    """Gemma 1. `hidden_act: gelu` is the approximation by tanh, which it was trained with."""
    legacy = config.get("hidden_activation") or config.get("hidden_act")
    activation = "gelu_tanh" if legacy == "gelu" else _activation(config)
    layer = _read(config, activation, kv_heads=_KV_HEADS_1)
    return _decoder(config, with_windows(layer, [None] * read_layers(config)))


def parse_gemma2(config: ConfigReader) -> DecoderConfig:
    """Gemma 2: every other layer has a window, the first among them; scores and logits are capped."""
    layer = _read(config, _activation(config), soft_cap=50.0)
    window = config.nullable_integer("sliding_window", _WINDOW)
    windows = typed_windows(config, window, [i % 2 == 0 for i in range(read_layers(config))])
    return _decoder(config, with_windows(layer, windows), names=_NAMES, soft_cap=30.0)


def parse_gemma3(config: ConfigReader) -> DecoderConfig:
    """Gemma 3: q and k are normed, and every sixth layer has no window and a rotary embedding of its own."""
    ropes = _ropes(config)
    layer = _read(config, _activation(config), rope=ropes[_FULL].config, qk_norm=True)
    sliding = replace(layer, mixer=replace(layer.mixer, rope=ropes[_SLIDING].config))
    layers = layers_by_window(layer, sliding, _windows(config))
    return _decoder(config, layers, names=_NAMES, context=ropes[_FULL].context)


def _ropes(config: ConfigReader) -> dict[str, Rope]:
    """Older files name the base of layers with a window apart, and stretch the others only."""
    if "rope_local_base_freq" not in config:
        return read_typed_ropes(config, _THETAS)
    local = config.number("rope_local_base_freq")
    return read_typed_ropes(config, {**_THETAS, _SLIDING: local})


def _windows(config: ConfigReader) -> tuple[int | None, ...]:
    every = config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", _EVERY))
    if every < 1:
        raise config.error("sliding_window_pattern", f"must be at least 1, not {every}")
    window = config.nullable_integer("sliding_window", _WINDOW)
    return typed_windows(config, window, [(i + 1) % every != 0 for i in range(read_layers(config))])


def _activation(config: ConfigReader) -> str:
    """`hidden_activation`, as transformers reads it; `hidden_act` is what the first files call it."""
    config.get("hidden_act")
    return read_activation(config, "hidden_activation" if "hidden_activation" in config else "hidden_act", "gelu_tanh")


def _read(
    config: ConfigReader,
    activation: str,
    *,
    soft_cap: float | None = None,
    qk_norm: bool = False,
    **attention: Any,
) -> LayerKind:
    """A layer; soft_cap: what a file without the key has."""
    config.only("use_bidirectional_attention", False)
    config.default("head_dim", _HEAD_DIM)
    norm, bias = read_norm(config, offset=1.0, wide=True), config.flag("attention_bias")
    both = soft_cap is not None or qk_norm
    if qk_norm and "attn_logit_softcapping" in config:
        raise config.error("attn_logit_softcapping", "must be null: Gemma 3's own code does not cap scores")
    scalar = config.number("query_pre_attn_scalar", _QUERY_SCALAR) if both else None
    if scalar is not None and not scalar > 0:
        raise config.error("query_pre_attn_scalar", f"must be above 0, not {scalar}")
    return read_layer(
        config,
        attention={
            "kv_heads": _KV_HEADS,
            "qkv_bias": bias,
            "out_bias": bias,
            "scale": None if scalar is None else scalar**-0.5,
            "soft_cap": config.nullable_number("attn_logit_softcapping", soft_cap) if both else None,
            "qk_norm": norm if qk_norm else None,
            **attention,
        },
        mlp={"activation": activation},
        norm=norm,
        norms="both" if both else "before",
    )


def _decoder(
    config: ConfigReader,
    layers: tuple[LayerKind, ...],
    *,
    names: TensorNames | None = None,
    soft_cap: float | None = None,
    context: int | None = None,
) -> DecoderConfig:
    config.default("tie_word_embeddings", True)
    differences: dict[str, Any] = {} if context is None else {"max_position_embeddings": context}
    if names is not None:
        differences["logits_soft_cap"] = config.nullable_number("final_logit_softcapping", soft_cap)
    scale = config.integer("hidden_size") ** 0.5
    return read_decoder(config, layers, names=names, embedding_scale=scale, **differences)


_GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "bos_token_id": 2,
    "eos_token_id": 1,
}

ARCHITECTURES = {
    "GemmaForCausalLM": Architecture(parse_gemma, ("gemma",)),
    "Gemma2ForCausalLM": Architecture(parse_gemma2, ("gemma2",)),
    "Gemma3ForCausalLM": Architecture(parse_gemma3, ("gemma3_text",), defaults=_GEMMA3_DEFAULTS),
}
