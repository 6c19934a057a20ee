"""Llama 2 and 3.x, and the many models of their form."""

from jaxinfer.models.config import DecoderConfig
from jaxinfer.models.decoder_fields import read_decoder, typed_windows
from jaxinfer.models.fields import Fields


def parse(fields: Fields) -> DecoderConfig:
    """`attention_bias` puts biases on q, k, v and the output projection; `mlp_bias` on all of the MLP.

    `layer_types` may say that all layers attend to all tokens, and nothing else.
    """
    bias = fields.flag("attention_bias")
    layers = fields.integer("num_hidden_layers")
    windows = typed_windows(fields, layers, None, [False] * layers)
    return read_decoder(fields, windows=windows, qkv_bias=bias, out_bias=bias, mlp_bias=fields.flag("mlp_bias"))
