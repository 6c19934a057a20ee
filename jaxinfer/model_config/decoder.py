"""The part of a config.json that all decoder families share."""

from typing import Any

from jaxinfer.errors import quoted
from jaxinfer.model_config.decoder_config import Activation, DecoderConfig
from jaxinfer.model_config.reader import ConfigReader
from jaxinfer.model_config.rope import read_rope

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


def read_decoder(
    config: ConfigReader, *, windows: tuple[int | None, ...] | None = None, **differences: Any
) -> DecoderConfig:
    """The shared fields of a config.json, with what the family says beside: windows, biases, norms.

    Where they are absent, rms_norm_eps is 1e-6 and hidden_act silu: transformers' defaults in all these families.
    Raises ModelError, naming the field, for what is missing, of a wrong type or unknown.
    """
    refuse_other_forms(config)
    layers = config.integer("num_hidden_layers")
    heads = config.integer("num_attention_heads")
    hidden = config.integer("hidden_size")
    if "head_dim" not in config and heads > 0 and hidden % heads:
        raise config.error("hidden_size", f"{quoted(hidden)} is not a multiple of num_attention_heads, {quoted(heads)}")
    rope, context = read_rope(config)
    decoder = DecoderConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=config.integer("head_dim", hidden // max(heads, 1)),
        max_position_embeddings=context,
        windows=(None,) * layers if windows is None else windows,
        rms_norm_eps=config.number("rms_norm_eps", DecoderConfig.rms_norm_eps),
        activation=config.choice("hidden_act", _ACTIVATIONS, DecoderConfig.activation),
        rope=rope,
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        bos_token_ids=config.token_ids("bos_token_id"),
        eos_token_ids=config.token_ids("eos_token_id"),
        **differences,
    )
    config.finish()
    return decoder


def refuse_other_forms(config: ConfigReader) -> None:
    """Raises ModelError for weights or code of a form that is not read."""
    if "quantization_config" in config:
        raise config.error("quantization_config", "is set; quantised checkpoints are not supported yet")
    if "auto_map" in config:
        raise config.error("auto_map", "asks for code from the model's folder, which is never run")
    config.only("rope_interleaved", False)
    config.only("partial_rotary_factor", 1.0)
    config.only("pruned_heads", {})


def sliding_layers(config: ConfigReader, layers: int, default: list[bool]) -> list[bool]:
    """Which layers have a window: from `layer_types`, or `default` where that is absent."""
    types = config.get("layer_types")
    if types is None:
        return default
    if not isinstance(types, list) or len(types) != layers or not all(map(_is_layer_type, types)):
        raise config.error("layer_types", f"must be {quoted(layers)} names out of {', '.join(_LAYER_TYPES)}")
    return [_LAYER_TYPES[name] for name in types]


def _is_layer_type(name: object) -> bool:
    return isinstance(name, str) and name in _LAYER_TYPES


def typed_windows(config: ConfigReader, layers: int, window: int | None, default: list[bool]) -> tuple[int | None, ...]:
    """A window for each layer of `sliding_layers`."""
    sliding = sliding_layers(config, layers, default)
    if any(sliding) and window is None:
        raise config.error("layer_types", "has sliding_attention, but no sliding_window is set")
    return tuple(window if slides else None for slides in sliding)
