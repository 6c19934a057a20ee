"""Phi-3, Phi-3.5 and Phi-4: Llama with fused tensors, heads that turn in part, and longrope; also with a camera."""

from dataclasses import replace

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import (
    read_decoder,
    read_head_dim,
    read_layer,
    read_layers,
    typed_windows,
    with_windows,
)
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.rope import read_rope
from jaxinfer.model_config.tensor_names import TensorNames

_NAMES = TensorNames(qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")
_ORIGINAL = "original_max_position_embeddings"
_ORIGINAL_CONTEXT = 4096


def parse(config: ConfigReader) -> DecoderConfig:
    """`sliding_window` holds for every layer. Biases, which files of Phi-4 say they lack, are not read."""
    return _parse(config, _NAMES)


def parse_vision(config: ConfigReader) -> DecoderConfig:
    """The text part of Phi-3-vision."""
    config.get("embd_layer")
    config.get("img_processor")
    return _parse(config, replace(_NAMES, skipped=("model.vision_embed_tokens.",)))


def _parse(config: ConfigReader, names: TensorNames) -> DecoderConfig:
    for name in ("attention_bias", "mlp_bias", "lm_head_bias"):
        config.only(name, False)
    for name in ("full_attn_mod", "interpolate_factor"):
        config.only(name, 1)
    config.default("rms_norm_eps", 1e-5)
    scaling = config.mapping("rope_parameters") or config.mapping("rope_scaling")
    if scaling is None or _ORIGINAL not in scaling:
        config.default(_ORIGINAL, _ORIGINAL_CONTEXT)
    rope = read_rope(config, head_dim=read_head_dim(config))
    window = config.nullable_integer("sliding_window", rope.context)
    window = None if window is None or window >= rope.context else window
    windows = typed_windows(config, window, [window is not None] * read_layers(config))
    layer = read_layer(config, attention={"rope": rope.config})
    return read_decoder(config, with_windows(layer, windows), names=names, max_position_embeddings=rope.context)


ARCHITECTURES = {
    "Phi3ForCausalLM": Architecture(parse, ("phi3",)),
    "Phi3VForCausalLM": Architecture(parse_vision, ("phi3_v",), "transformers, as Phi-3"),
}
