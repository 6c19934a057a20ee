"""Mistral 7B and its like: Llama with a window over all layers."""

from jaxinfer.models.config import DecoderConfig
from jaxinfer.models.decoder_fields import read_decoder, typed_windows
from jaxinfer.models.fields import Fields

# What a config.json without the key means; null means no window.
_DEFAULT_WINDOW = 4096


def parse(fields: Fields) -> DecoderConfig:
    """`sliding_window` holds for every layer; an absent key is 4096, null is none."""
    fields.only("attention_bias", False)
    fields.only("mlp_bias", False)
    layers = fields.integer("num_hidden_layers")
    fields.integer("num_key_value_heads")
    window = fields.nullable_integer("sliding_window", _DEFAULT_WINDOW)
    windows = typed_windows(fields, layers, window, [window is not None] * layers)
    return read_decoder(fields, windows=windows)
