"""Qwen2 and Qwen2.5: Llama with biases on q, k and v; a window where `use_sliding_window` says so."""

from jaxinfer.models.config import DecoderConfig
from jaxinfer.models.decoder_fields import read_decoder, sliding_layers, typed_windows
from jaxinfer.models.fields import Fields

_DEFAULT_WINDOW = 4096
_DEFAULT_FULL_LAYERS = 28


def parse(fields: Fields) -> DecoderConfig:
    """q, k and v always have biases, whatever `attention_bias` says: transformers does not read it."""
    fields.flag("attention_bias")
    fields.only("mlp_bias", False)
    return read_decoder(fields, windows=qwen_windows(fields), qkv_bias=True)


def qwen_windows(fields: Fields) -> tuple[int | None, ...]:
    """With `use_sliding_window` the layers from `max_window_layers` on have a window; the name says the contrary.

    Without it none has, not even those that `layer_types` calls sliding.
    """
    layers = fields.integer("num_hidden_layers")
    fields.integer("num_key_value_heads")
    full_layers = fields.integer("max_window_layers", _DEFAULT_FULL_LAYERS)
    window = fields.nullable_integer("sliding_window", _DEFAULT_WINDOW)
    if not fields.flag("use_sliding_window"):
        sliding_layers(fields, layers, [])
        return (None,) * layers
    return typed_windows(fields, layers, window, [window is not None and i >= full_layers for i in range(layers)])
