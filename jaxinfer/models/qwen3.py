"""Qwen3, dense: Llama with a norm over each head of q and k."""

from jaxinfer.models.config import DecoderConfig
from jaxinfer.models.decoder_fields import read_decoder
from jaxinfer.models.fields import Fields
from jaxinfer.models.qwen2 import qwen_windows

_DEFAULT_HEAD_DIM = 128


def parse(fields: Fields) -> DecoderConfig:
    """`head_dim` is 128 where it is absent; `attention_bias` as in Llama."""
    bias = fields.flag("attention_bias")
    fields.only("mlp_bias", False)
    windows = qwen_windows(fields)
    fields.default("head_dim", _DEFAULT_HEAD_DIM)
    return read_decoder(fields, windows=windows, qkv_bias=bias, out_bias=bias, qk_norm=True)
