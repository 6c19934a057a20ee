"""Granite 3 and 4.0, dense and with experts: Llama with multipliers on embedding, residual, attention and logits."""

from dataclasses import replace

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.errors import quoted
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder import (
    read_activation,
    read_attention,
    read_decoder,
    read_layers,
    read_mlp,
    read_norm,
    typed_windows,
    with_windows,
)
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind, RouterKind
from jaxinfer.model_config.rope import read_rope
from jaxinfer.model_config.rope_config import RopeConfig
from jaxinfer.model_config.tensor_names import TensorNames

_MOE_NAMES = TensorNames(
    router="block_sparse_moe.router.layer",
    experts_gate_up="block_sparse_moe.input_linear.weight",
    experts_down="block_sparse_moe.output_linear.weight",
)
_SHARED_GATE_UP, _SHARED_DOWN = "shared_mlp.input_linear", "shared_mlp.output_linear"
_HYBRID_NAMES = replace(
    _MOE_NAMES,
    gate_up=_SHARED_GATE_UP,
    down=_SHARED_DOWN,
    shared_gate_up=_SHARED_GATE_UP,
    shared_down=_SHARED_DOWN,
)
_SHARED_SIZE = 1024
_ATTENTION, _STATES = ("attention", "full_attention"), ("mamba", "linear_attention")
_POSITIONS = {"rope": True, "nope": False}
# Of layers that no model that is read here has, and of training.
_UNUSED = (
    "init_method",
    "mamba_chunk_size",
    "mamba_conv_bias",
    "mamba_d_conv",
    "mamba_d_head",
    "mamba_d_state",
    "mamba_expand",
    "mamba_n_groups",
    "mamba_n_heads",
    "mamba_proj_bias",
    "time_step_limit",
)


def parse_dense(config: ConfigReader) -> DecoderConfig:
    """Granite without experts."""
    return _parse(config, read_mlp(config, bias=config.flag("mlp_bias")), TensorNames())


def parse_moe(config: ConfigReader) -> DecoderConfig:
    """The chosen experts are weighed by what they score among themselves."""
    return _parse(config, read_mlp(config, experts=_read_experts(config)), _MOE_NAMES)


def parse_hybrid(config: ConfigReader) -> DecoderConfig:
    """Granite 4.0 whose layers are all attention (Micro, 1B, 350M): what experts share is the MLP of a dense model.

    Layers know positions where `position_embedding_type` is `rope`.
    """
    count = read_layers(config)
    _refuse_states(config, count)
    config.only("normalization_function", "rmsnorm")
    config.only("mlp_bias", False)
    for name in _UNUSED:
        config.get(name)
    rope, turned = read_rope(config), config.choice("position_embedding_type", _POSITIONS, "nope")
    layer = _read_layer(config, _read_hybrid_mlp(config), rope.config if turned else None)
    context = rope.context if turned else config.integer("max_position_embeddings")
    return _decoder(config, (layer,) * count, _HYBRID_NAMES, context)


def _refuse_states(config: ConfigReader, layers: int) -> None:
    """Raises ModelError where a layer is not attention; both names of the list are read."""
    if "layer_types" not in config and "layers_block_type" not in config:
        raise config.error("layer_types", "is missing: its layers keep a state then, which is not supported yet")
    for name in ("layer_types", "layers_block_type"):
        types = config.get(name, [_ATTENTION[0]] * layers)
        if isinstance(types, list) and any(kind in _STATES for kind in types):
            raise config.error(name, "has layers that keep a state, which are not supported yet")
        if not isinstance(types, list) or len(types) != layers or not all(kind in _ATTENTION for kind in types):
            raise config.error(name, f"must be {layers} names out of {', '.join(_ATTENTION)}")


def _read_hybrid_mlp(config: ConfigReader) -> MlpKind | ExpertsKind:
    """`num_local_experts` is 0 for a dense model, of which `intermediate_size` means nothing."""
    activation = read_activation(config, "hidden_act", "silu")
    shared = config.integer("shared_intermediate_size", _SHARED_SIZE)
    if shared < 1:
        raise config.error("shared_intermediate_size", f"must be at least 1, not {quoted(shared)}")
    if config.integer("num_local_experts", 8) == 0:
        config.integer("num_experts_per_tok", 0)
        config.integer("intermediate_size", 0)
        return MlpKind(shared, activation)
    return read_mlp(config, activation=activation, experts=replace(_read_experts(config), shared=shared))


def _read_experts(config: ConfigReader) -> ExpertsKind:
    return ExpertsKind(
        config.integer("num_local_experts", 8),
        config.integer("num_experts_per_tok", 2),
        config.integer("intermediate_size"),
        RouterKind("softmax_chosen"),
    )


def _parse(config: ConfigReader, mlp: MlpKind | ExpertsKind, names: TensorNames) -> DecoderConfig:
    rope = read_rope(config)
    windows = typed_windows(config, None, [False] * read_layers(config))
    return _decoder(config, with_windows(_read_layer(config, mlp, rope.config), windows), names, rope.context)


def _read_layer(config: ConfigReader, mlp: MlpKind | ExpertsKind, rope: RopeConfig | None) -> LayerKind:
    bias, scale = config.flag("attention_bias"), config.number("attention_multiplier", 1.0)
    attention = read_attention(config, rope=rope, qkv_bias=bias, out_bias=bias, scale=scale)
    return LayerKind(attention, mlp, read_norm(config), residual_scale=config.number("residual_multiplier", 1.0))


def _decoder(config: ConfigReader, layers: tuple[LayerKind, ...], names: TensorNames, context: int) -> DecoderConfig:
    divisor = config.number("logits_scaling", 1.0)
    if not divisor > 0:
        raise config.error("logits_scaling", f"must be above 0, not {divisor}")
    return read_decoder(
        config,
        layers,
        names=names,
        embedding_scale=config.number("embedding_multiplier", 1.0),
        logits_scale=1 / divisor,
        max_position_embeddings=context,
    )


ARCHITECTURES = {
    "GraniteForCausalLM": Architecture(parse_dense, ("granite",)),
    "GraniteMoeForCausalLM": Architecture(parse_moe, ("granitemoe",)),
    "GraniteMoeHybridForCausalLM": Architecture(
        parse_hybrid, ("granitemoehybrid",), "transformers, without Mamba layers"
    ),
}
