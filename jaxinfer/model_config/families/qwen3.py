"""Qwen3, dense: Llama with a norm over each head of q and k."""

from jaxinfer.model_config.decoder import read_decoder
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.families.qwen2 import qwen_windows
from jaxinfer.model_config.reader import ConfigReader

_DEFAULT_HEAD_DIM = 128


def parse(config: ConfigReader) -> DecoderConfig:
    """`head_dim` is 128 where it is absent; `attention_bias` as in Llama."""
    bias = config.flag("attention_bias")
    config.only("mlp_bias", False)
    windows = qwen_windows(config)
    config.default("head_dim", _DEFAULT_HEAD_DIM)
    return read_decoder(config, windows=windows, qkv_bias=bias, out_bias=bias, qk_norm=True)
