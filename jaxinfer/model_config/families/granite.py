"""Granite 3 to 4.1, dense and with experts: Llama with multipliers on embedding, residual, attention and logits."""

from typing import Any

from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import read_decoder, read_layer, read_layers, typed_windows, with_windows
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.mlp_kind import ExpertsKind, RouterKind
from jaxinfer.model_config.reader import ConfigReader
from jaxinfer.model_config.tensor_names import TensorNames

_MOE_NAMES = TensorNames(
    router="block_sparse_moe.router.layer",
    experts_gate_up="block_sparse_moe.input_linear.weight",
    experts_down="block_sparse_moe.output_linear.weight",
)


def parse_dense(config: ConfigReader) -> DecoderConfig:
    """Granite without experts."""
    return _parse(config, {"bias": config.flag("mlp_bias")}, TensorNames())


def parse_moe(config: ConfigReader) -> DecoderConfig:
    """The chosen experts are weighed by what they score among themselves."""
    experts = ExpertsKind(
        config.integer("num_local_experts", 8),
        config.integer("num_experts_per_tok", 2),
        config.integer("intermediate_size"),
        RouterKind("softmax_chosen"),
    )
    return _parse(config, {"experts": experts}, _MOE_NAMES)


def _parse(config: ConfigReader, mlp: dict[str, Any], names: TensorNames) -> DecoderConfig:
    bias, divisor = config.flag("attention_bias"), config.number("logits_scaling", 1.0)
    if not divisor > 0:
        raise config.error("logits_scaling", f"must be above 0, not {divisor}")
    layer = read_layer(
        config,
        attention={"qkv_bias": bias, "out_bias": bias, "scale": config.number("attention_multiplier", 1.0)},
        mlp=mlp,
        residual_scale=config.number("residual_multiplier", 1.0),
    )
    windows = typed_windows(config, None, [False] * read_layers(config))
    scale = config.number("embedding_multiplier", 1.0)
    layers = with_windows(layer, windows)
    return read_decoder(config, layers, names=names, embedding_scale=scale, logits_scale=1 / divisor)


ARCHITECTURES = {
    "GraniteForCausalLM": Architecture(parse_dense, ("granite",)),
    "GraniteMoeForCausalLM": Architecture(parse_moe, ("granitemoe",)),
}
