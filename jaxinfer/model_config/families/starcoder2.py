"""StarCoder 2: LayerNorms, biases everywhere, an MLP without a gate."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import (
    read_activation,
    read_decoder,
    read_layer,
    read_layers,
    typed_windows,
    with_windows,
)
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import NormKind
from jaxinfer.model_config.tensor_names import TensorNames

_NAMES = TensorNames(up="mlp.c_fc", down="mlp.c_proj")
_KV_HEADS = 2


def parse(config: ConfigReader) -> DecoderConfig:
    """`hidden_act` and `norm_epsilon` count; the files also carry the older names."""
    config.default("tie_word_embeddings", True)
    config.only("mlp_type", "default")
    config.only("norm_type", "layer_norm")
    config.only("scale_attn_weights", True)
    for name in ("activation_function", "layer_norm_epsilon"):
        config.get(name)
    bias = config.flag("use_bias", True)
    layer = read_layer(
        config,
        attention={"kv_heads": _KV_HEADS, "qkv_bias": bias, "out_bias": bias},
        mlp={"bias": bias, "gated": False, "activation": read_activation(config, "hidden_act", "gelu_tanh")},
        norm=NormKind("layer", config.number("norm_epsilon", 1e-5), bias=True),
    )
    window = config.integer("sliding_window") if "sliding_window" in config else None
    windows = typed_windows(config, window, [window is not None] * read_layers(config))
    return read_decoder(config, with_windows(layer, windows), names=_NAMES)


ARCHITECTURES = {"Starcoder2ForCausalLM": Architecture(parse, ("starcoder2",))}
