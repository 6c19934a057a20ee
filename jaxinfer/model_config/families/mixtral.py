"""Mixtral: Mistral with experts."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import read_decoder, read_layer, read_layers, typed_windows, with_windows
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.mlp_kind import ExpertsKind, RouterKind
from jaxinfer.model_config.rope import read_rope
from jaxinfer.model_config.tensor_names import TensorNames

_NAMES = TensorNames(
    router="block_sparse_moe.gate",
    experts="block_sparse_moe.experts.",
    expert_gate="w1",
    expert_up="w3",
    expert_down="w2",
)
_KV_HEADS, _THETA = 8, 1e6


def parse(config: ConfigReader) -> DecoderConfig:
    """The two experts that score best are weighed by what they score among themselves."""
    config.default("rms_norm_eps", 1e-5)
    config.only("attention_bias", False)
    config.number("router_jitter_noise", 0.0)  # of training
    experts = ExpertsKind(
        config.integer("num_local_experts", 8),
        config.integer("num_experts_per_tok", 2),
        config.integer("intermediate_size"),
        RouterKind(normalise=True),
    )
    window = config.integer("sliding_window") if "sliding_window" in config else None
    windows = typed_windows(config, window, [window is not None] * read_layers(config))
    rope = read_rope(config, theta=_THETA)
    layer = read_layer(config, attention={"kv_heads": _KV_HEADS, "rope": rope.config}, mlp={"experts": experts})
    layers = with_windows(layer, windows)
    return read_decoder(config, layers, names=_NAMES, max_position_embeddings=rope.context)


ARCHITECTURES = {"MixtralForCausalLM": Architecture(parse, ("mixtral",))}
