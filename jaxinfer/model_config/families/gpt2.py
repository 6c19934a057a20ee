"""GPT-2: learned positions, LayerNorms, biases everywhere, matrices that lie [in, out]."""

from dataclasses import replace

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import read_activation, read_decoder
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import AttentionKind, LayerKind, NormKind
from jaxinfer.model_config.mlp_kind import MlpKind
from jaxinfer.model_config.tensor_names import Root, TensorNames

_NAMES = TensorNames(
    roots=(Root("transformer."), Root("")),
    embed="wte",
    positions="wpe",
    norm="ln_f",
    layers="h.",
    qkv="attn.c_attn",
    out="attn.c_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
    input_norm="ln_1",
    mlp_norm="ln_2",
    columns_first=True,
)
# Masks that old files hold as tensors.
_MASKS = ("attn.bias", "attn.masked_bias")


def parse(config: ConfigReader) -> DecoderConfig:
    """Fields have names of their own: n_embd, n_head, n_layer, n_positions, n_inner."""
    hidden, heads, count = config.integer("n_embd"), config.integer("n_head"), config.integer("n_layer")
    if heads < 1 or hidden % heads:
        raise config.error("n_embd", f"{hidden} is not a multiple of n_head, {heads}")
    config.default("hidden_size", hidden)
    config.default("tie_word_embeddings", True)
    config.only("scale_attn_weights", True)
    for name in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"):
        config.only(name, False)
    positions = config.integer("n_positions")
    config.only("n_ctx", positions)
    config.only("n_special", 0)
    config.get("predict_special_tokens")
    norm = NormKind("layer", config.number("layer_norm_epsilon", 1e-5), bias=True)
    activation = read_activation(config, "activation_function", "gelu_tanh")
    layer = LayerKind(
        AttentionKind(heads, heads, hidden // heads, rope=None, qkv_bias=True, out_bias=True),
        MlpKind(config.integer("n_inner", 4 * hidden), activation, gated=False, bias=True),
        norm,
    )
    masks = tuple(f"{root.body}h.{i}.{mask}" for root in _NAMES.roots for i in range(count) for mask in _MASKS)
    return read_decoder(
        config,
        (layer,) * count,
        names=replace(_NAMES, skipped=masks),
        max_position_embeddings=positions,
        learned_positions=True,
    )


ARCHITECTURES = {"GPT2LMHeadModel": Architecture(parse, ("gpt2",))}
