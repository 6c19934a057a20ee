"""Llama 2 and 3.x, and the many models of their form."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import read_decoder, read_layer, read_layers, typed_windows, with_windows
from jaxinfer.model_config.decoder_config import DecoderConfig


def parse(config: ConfigReader) -> DecoderConfig:
    """`attention_bias` puts biases on q, k, v and the output projection; `mlp_bias` on all of the MLP.

    `layer_types` may say that all layers attend to all tokens, and nothing else.
    """
    bias = config.flag("attention_bias")
    layer = read_layer(config, attention={"qkv_bias": bias, "out_bias": bias}, mlp={"bias": config.flag("mlp_bias")})
    windows = typed_windows(config, None, [False] * read_layers(config))
    return read_decoder(config, with_windows(layer, windows))


_DEFAULTS = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

ARCHITECTURES = {"LlamaForCausalLM": Architecture(parse, ("llama",), defaults=_DEFAULTS)}
