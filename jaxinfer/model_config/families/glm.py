"""GLM-4 and GLM-4.5: heads that turn in part; GLM-4-0414 with norms on both sides, GLM-4.5 with experts."""

from dataclasses import replace

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import read_decoder, read_head_dim, read_layer, read_layers, read_mlp, read_norm
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, RouterKind
from jaxinfer.model_config.rope import read_rope
from jaxinfer.model_config.tensor_names import TensorNames

_PARTIAL, _HEAD_DIM, _EPS = 0.5, 128, 1.5625e-7
_KV_HEADS, _MOE_KV_HEADS = 2, 8
_NAMES = TensorNames(
    gate_up="mlp.gate_up_proj",
    interleaved_rope=True,
    attention_out_norm="post_self_attn_layernorm",
    mlp_out_norm="post_mlp_layernorm",
)
_MOE_NAMES = TensorNames(
    shared_gate="mlp.shared_experts.gate_proj",
    shared_up="mlp.shared_experts.up_proj",
    shared_down="mlp.shared_experts.down_proj",
)


def parse_glm(config: ConfigReader) -> DecoderConfig:
    """GLM-4-9B as its `-hf` files have it: norms before attention and MLP only."""
    return _parse_dense(config, both=False)


def parse_glm4(config: ConfigReader) -> DecoderConfig:
    """GLM-4-0414, GLM-Z1."""
    return _parse_dense(config, both=True)


def _parse_dense(config: ConfigReader, *, both: bool) -> DecoderConfig:
    config.default("head_dim", _HEAD_DIM)
    config.default("rms_norm_eps", _EPS)
    rope = read_rope(config, head_dim=read_head_dim(config), partial=_PARTIAL)
    layer = read_layer(
        config,
        attention={"kv_heads": _KV_HEADS, "rope": rope.config, "qkv_bias": config.flag("attention_bias", True)},
        norms="both" if both else "before",
    )
    layers = (layer,) * read_layers(config)
    return read_decoder(config, layers, names=_NAMES, max_position_embeddings=rope.context)


def parse_glm4_moe(config: ConfigReader) -> DecoderConfig:
    """GLM-4.5, 4.6: the first layers have no experts; tensors of layers after the last predict further tokens."""
    config.default("rms_norm_eps", 1e-5)
    rope = read_rope(config, head_dim=read_head_dim(config), partial=_PARTIAL)
    layer = read_layer(
        config,
        attention={
            "kv_heads": _MOE_KV_HEADS,
            "rope": rope.config,
            "qkv_bias": config.flag("attention_bias"),
            "qk_norm": read_norm(config) if config.flag("use_qk_norm") else None,
        },
    )
    count, dense = read_layers(config), config.integer("first_k_dense_replace", 1)
    more = config.integer("num_nextn_predict_layers", config.integer("num_mtp_layers", 1))
    skipped = tuple(f"model.layers.{count + i}." for i in range(more))
    return read_decoder(
        config,
        tuple(layer if i < dense else _with_experts(config, layer) for i in range(count)),
        names=replace(_MOE_NAMES, skipped=skipped),
        max_position_embeddings=rope.context,
    )


def _with_experts(config: ConfigReader, layer: LayerKind) -> LayerKind:
    size = config.integer("moe_intermediate_size")
    config.default("n_routed_experts", config.get("num_local_experts"))
    experts = ExpertsKind(
        config.integer("n_routed_experts"),
        config.integer("num_experts_per_tok", 8),
        size,
        RouterKind(
            "sigmoid",
            choice_bias=True,
            groups=config.integer("n_group", 1),
            top_groups=config.integer("topk_group", 1),
            normalise=config.flag("norm_topk_prob", True),
            scale=config.number("routed_scaling_factor", 1.0),
        ),
        shared=size * config.integer("n_shared_experts", 1),
    )
    return replace(layer, mlp=read_mlp(config, experts=experts))


ARCHITECTURES = {
    "GlmForCausalLM": Architecture(parse_glm, ("glm",)),
    "Glm4ForCausalLM": Architecture(parse_glm4, ("glm4",)),
    "Glm4MoeForCausalLM": Architecture(parse_glm4_moe, ("glm4_moe",)),
}
