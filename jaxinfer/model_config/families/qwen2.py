"""Qwen2 and Qwen2.5: Llama with biases on q, k and v; a window where `use_sliding_window` says so."""

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
from jaxinfer.model_config.reader import ConfigReader

_DEFAULT_WINDOW = 4096
_DEFAULT_FULL_LAYERS = 28


def parse(config: ConfigReader) -> DecoderConfig:
    """q, k and v always have biases, whatever `attention_bias` says: transformers does not read it."""
    config.flag("attention_bias")
    config.only("mlp_bias", False)
    return read_decoder(config, with_windows(read_layer(config, attention={"qkv_bias": True}), qwen_windows(config)))


def qwen_windows(config: ConfigReader) -> tuple[int | None, ...]:
    """With `use_sliding_window` the layers from `max_window_layers` on have a window; the name says the contrary.

    Without it none has, not even those that `layer_types` calls sliding.
    """
    layers = read_layers(config)
    config.integer("num_key_value_heads")
    full_layers = config.integer("max_window_layers", _DEFAULT_FULL_LAYERS)
    window = config.nullable_integer("sliding_window", _DEFAULT_WINDOW)
    if not config.flag("use_sliding_window"):
        sliding_layers(config, layers, [])
        return (None,) * layers
    return typed_windows(config, window, [window is not None and i >= full_layers for i in range(layers)])


ARCHITECTURES = {"Qwen2ForCausalLM": Architecture(parse, ("qwen2",))}
