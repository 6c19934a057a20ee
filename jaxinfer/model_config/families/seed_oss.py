"""Seed-OSS: Llama with biases on q, k and v."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import read_decoder, read_layer, read_layers, typed_windows, with_windows
from jaxinfer.model_config.decoder_config import DecoderConfig

_HEAD_DIM, _KV_HEADS = 128, 8


def parse(config: ConfigReader) -> DecoderConfig:
    """`attention_bias` is of q, k and v alone; `attention_out_bias` of what comes out."""
    config.default("head_dim", _HEAD_DIM)
    attention = {
        "kv_heads": _KV_HEADS,
        "qkv_bias": config.flag("attention_bias", True),
        "out_bias": config.flag("attention_out_bias"),
    }
    layer = read_layer(config, attention=attention, mlp={"bias": config.flag("mlp_bias")})
    return read_decoder(config, with_windows(layer, typed_windows(config, None, [False] * read_layers(config))))


ARCHITECTURES = {"SeedOssForCausalLM": Architecture(parse, ("seed_oss",))}
