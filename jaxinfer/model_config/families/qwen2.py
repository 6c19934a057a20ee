"""Qwen2 and Qwen2.5: Llama with biases on q, k and v; a window where `use_sliding_window` says so."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import (
    read_decoder,
    read_layer,
    read_layers,
    sliding_layers,
    typed_windows,
    with_windows,
)
from jaxinfer.model_config.decoder_config import DecoderConfig

_WINDOW, _FULL_LAYERS = 4096, 28
KV_HEADS = 32
"""Default number of KV heads of Qwen2 and Qwen3."""


def parse(config: ConfigReader) -> DecoderConfig:
    """q, k and v always have biases, whatever `attention_bias` says: transformers does not read it."""
    config.flag("attention_bias")
    config.only("mlp_bias", False)
    layer = read_layer(config, attention={"kv_heads": KV_HEADS, "qkv_bias": True})
    return read_decoder(config, with_windows(layer, qwen_windows(config)))


def qwen_windows(config: ConfigReader) -> tuple[int | None, ...]:
    """Return each layer's window. With `use_sliding_window` layers from `max_window_layers` on have one, contrary to
    the name.

    Without it no layer has one, not even those that `layer_types` calls sliding.
    """
    layers = read_layers(config)
    full_layers = config.integer("max_window_layers", _FULL_LAYERS)
    window = config.nullable_integer("sliding_window", _WINDOW)
    if not config.flag("use_sliding_window"):
        sliding_layers(config, layers, [])
        return (None,) * layers
    return typed_windows(config, window, [window is not None and i >= full_layers for i in range(layers)])


ARCHITECTURES = {"Qwen2ForCausalLM": Architecture(parse, ("qwen2",))}
