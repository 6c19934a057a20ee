"""MiniMax-M2: experts chosen by sigmoids, q and k normed over all heads, heads that turn in part."""

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import read_decoder, read_head_dim, read_layer, read_layers, read_norm
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.mlp_kind import ExpertsKind, RouterKind
from jaxinfer.model_config.rope import read_rope
from jaxinfer.model_config.tensor_names import TensorNames

_NAMES = TensorNames(
    router="block_sparse_moe.gate",
    choice_bias="block_sparse_moe.e_score_correction_bias",
    experts="block_sparse_moe.experts.",
    expert_gate="w1",
    expert_up="w3",
    expert_down="w2",
    skipped=("model.mtp.", "mtp."),
)
_HEAD_DIM, _KV_HEADS, _THETA = 128, 8, 5e6


def parse(config: ConfigReader) -> DecoderConfig:
    """Read the config. Fields of the published files that transformers does not read must agree with this model."""
    config.default("head_dim", _HEAD_DIM)
    for name, wanted in (("use_qk_norm", True), ("qk_norm_type", "per_layer"), ("use_routing_bias", True)):
        config.only(name, wanted)
    config.only("scoring_func", "sigmoid")
    config.only("shared_intermediate_size", 0)
    config.only("attn_type_list", [1] * read_layers(config))
    for kind in ("full_attention", "linear_attention", "mlp"):
        config.only(f"layernorm_{kind}_beta", 1.0)
    for name in ("mlp_intermediate_size", "shared_moe_mode"):
        config.get(name)  # of the shared MLP, which has no channels
    for name in ("use_mtp", "num_mtp_modules", "mtp_transformer_layers", "router_jitter_noise"):
        config.get(name)
    dim = read_head_dim(config)
    turned = config.integer("rotary_dim", dim)
    rope = read_rope(config, theta=_THETA, head_dim=dim, partial=turned / dim)
    experts = ExpertsKind(
        config.integer("num_local_experts"),
        config.integer("num_experts_per_tok"),
        config.integer("intermediate_size"),
        RouterKind("sigmoid", choice_bias=True, normalise=True),
    )
    layer = read_layer(
        config,
        attention={
            "kv_heads": _KV_HEADS,
            "rope": rope.config,
            "qk_norm": read_norm(config),
            "qk_norm_over": "projection",
        },
        mlp={"experts": experts},
    )
    layers = (layer,) * read_layers(config)
    return read_decoder(config, layers, names=_NAMES, max_position_embeddings=rope.context)


ARCHITECTURES = {"MiniMaxM2ForCausalLM": Architecture(parse, ("minimax_m2",))}
