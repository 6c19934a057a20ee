"""DeepSeek-MoE 16B, before DeepSeek-V2: Llama with many small experts, and some that every token goes through."""

from dataclasses import replace

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import NUMPY_MODEL, Architecture
from jaxinfer.model_config.decoder import read_decoder, read_layer, read_layers, read_mlp
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, RouterKind
from jaxinfer.model_config.tensor_names import TensorNames

_NAMES = TensorNames(
    shared_gate="mlp.shared_experts.gate_proj",
    shared_up="mlp.shared_experts.up_proj",
    shared_down="mlp.shared_experts.down_proj",
)


def parse(config: ConfigReader) -> DecoderConfig:
    """The first `first_k_dense_replace` layers have no experts, and of the others every `moe_layer_freq`-th has."""
    for name in ("aux_loss_alpha", "seq_aux"):
        config.get(name)  # of training
    bias, count = config.flag("attention_bias"), read_layers(config)
    layer = read_layer(config, attention={"qkv_bias": bias, "out_bias": bias})
    first, every = config.integer("first_k_dense_replace", 0), config.integer("moe_layer_freq", 1)
    if every < 1:
        raise config.error("moe_layer_freq", f"must be at least 1, not {every}")
    sparse = _with_experts(config, layer)
    layers = tuple(sparse if i >= first and i % every == 0 else layer for i in range(count))
    return read_decoder(config, layers, names=_NAMES)


def _with_experts(config: ConfigReader, layer: LayerKind) -> LayerKind:
    config.only("scoring_func", "softmax")
    size, chosen = config.integer("moe_intermediate_size"), config.integer("num_experts_per_tok")
    experts = ExpertsKind(
        config.integer("n_routed_experts"),
        chosen,
        size,
        RouterKind(normalise=config.flag("norm_topk_prob") and chosen > 1),
        shared=size * config.integer("n_shared_experts", 0),
    )
    return replace(layer, mlp=read_mlp(config, experts=experts))


ARCHITECTURES = {"DeepseekForCausalLM": Architecture(parse, ("deepseek",), NUMPY_MODEL)}
