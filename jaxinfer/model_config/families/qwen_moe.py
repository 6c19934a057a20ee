"""Qwen2-MoE and Qwen3-MoE: Qwen2 and Qwen3 with experts in all or some layers."""

from dataclasses import replace
from typing import Any

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import (
    read_decoder,
    read_layer,
    read_layers,
    read_mlp,
    read_norm,
    sliding_layers,
    typed_windows,
    with_windows,
)
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, RouterKind

_WINDOW, _WINDOWED_LAYERS = 4096, 28
_KV_HEADS_2, _KV_HEADS_3 = 16, 4


def parse_qwen2_moe(config: ConfigReader) -> DecoderConfig:
    """Every token goes through a shared expert too, whose result is gated. With `use_sliding_window` every other layer
    below `max_window_layers` has a window."""
    experts = _read_experts(config, shared=config.integer("shared_expert_intermediate_size", 5632), shared_gate=True)
    layers, below = read_layers(config), config.integer("max_window_layers", _WINDOWED_LAYERS)
    window, used = config.nullable_integer("sliding_window", _WINDOW), config.flag("use_sliding_window")
    default = [used and i % 2 == 0 and i < below for i in range(layers)]
    windows = typed_windows(config, window, default) if used else _no_windows(config)
    layer = read_layer(config, attention={"kv_heads": _KV_HEADS_2, "qkv_bias": config.flag("qkv_bias", True)})
    return read_decoder(config, _with_experts(config, with_windows(layer, windows), experts))


def parse_qwen3_moe(config: ConfigReader) -> DecoderConfig:
    """Read a Qwen3-MoE config. If `use_sliding_window` is set, every layer has a window."""
    for name, wanted in (("qkv_bias", False), ("use_qk_norm", True), ("shared_expert_intermediate_size", 0)):
        config.only(name, wanted)
    bias, experts = config.flag("attention_bias"), _read_experts(config)
    attention = {"kv_heads": _KV_HEADS_3, "qkv_bias": bias, "out_bias": bias, "qk_norm": read_norm(config)}
    config.integer("max_window_layers", _WINDOWED_LAYERS)
    window, used = config.nullable_integer("sliding_window", _WINDOW), config.flag("use_sliding_window")
    windows = (window,) * read_layers(config) if used else _no_windows(config)
    layer = read_layer(config, attention=attention)
    return read_decoder(config, _with_experts(config, with_windows(layer, windows), experts))


def _no_windows(config: ConfigReader) -> tuple[None, ...]:
    layers = read_layers(config)
    sliding_layers(config, layers, [])
    return (None,) * layers


def _read_experts(config: ConfigReader, **differences: Any) -> ExpertsKind:
    """`num_experts`, which newer files call `num_local_experts`."""
    config.default("num_experts", config.get("num_local_experts"))
    return ExpertsKind(
        config.integer("num_experts"),
        config.integer("num_experts_per_tok"),
        config.integer("moe_intermediate_size"),
        RouterKind(normalise=config.flag("norm_topk_prob")),
        **differences,
    )


def _with_experts(config: ConfigReader, layers: tuple[LayerKind, ...], experts: ExpertsKind) -> tuple[LayerKind, ...]:
    """Layers in `mlp_only_layers` keep their MLP, and of the others all but every `decoder_sparse_step`-th."""
    step, plain = config.integer("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
    if step < 1:
        raise config.error("decoder_sparse_step", f"must be at least 1, not {step}")
    if not isinstance(plain, list) or not all(isinstance(layer, int) for layer in plain):
        raise config.error("mlp_only_layers", "must be a list of layers' numbers")
    mlp = read_mlp(config, experts=experts)
    return tuple(layer if i in plain or (i + 1) % step else replace(layer, mlp=mlp) for i, layer in enumerate(layers))


ARCHITECTURES = {
    "Qwen2MoeForCausalLM": Architecture(parse_qwen2_moe, ("qwen2_moe",)),
    "Qwen3MoeForCausalLM": Architecture(parse_qwen3_moe, ("qwen3_moe",)),
}
