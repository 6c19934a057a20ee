"""Mistral 7B and its like: Llama with a window over all layers."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import read_decoder, read_layer, read_layers, typed_windows, with_windows
from jaxinfer.model_config.decoder_config import DecoderConfig

# What a config.json without the keys means; null means no window, and as many KV heads as heads.
_WINDOW, _KV_HEADS = 4096, 8


def parse(config: ConfigReader) -> DecoderConfig:
    """`sliding_window` holds for every layer; an absent key is 4096, null is none."""
    config.only("attention_bias", False)
    config.only("mlp_bias", False)
    window = config.nullable_integer("sliding_window", _WINDOW)
    windows = typed_windows(config, window, [window is not None] * read_layers(config))
    return read_decoder(config, with_windows(read_layer(config, attention={"kv_heads": _KV_HEADS}), windows))


_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": _KV_HEADS,
    "max_position_embeddings": 131072,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

ARCHITECTURES = {"MistralForCausalLM": Architecture(parse, ("mistral",), defaults=_DEFAULTS)}
