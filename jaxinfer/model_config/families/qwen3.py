"""Qwen3, dense: Llama with a norm over each head of q and k."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import read_decoder, read_layer, read_norm, with_windows
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.families.qwen2 import KV_HEADS, qwen_windows

_DEFAULT_HEAD_DIM = 128


def parse(config: ConfigReader) -> DecoderConfig:
    """`head_dim` is 128 where it is absent; `attention_bias` as in Llama."""
    bias = config.flag("attention_bias")
    config.only("mlp_bias", False)
    config.default("head_dim", _DEFAULT_HEAD_DIM)
    attention = {"kv_heads": KV_HEADS, "qkv_bias": bias, "out_bias": bias, "qk_norm": read_norm(config)}
    return read_decoder(config, with_windows(read_layer(config, attention=attention), qwen_windows(config)))


ARCHITECTURES = {"Qwen3ForCausalLM": Architecture(parse, ("qwen3",))}
