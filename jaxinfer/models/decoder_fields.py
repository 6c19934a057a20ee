"""The part of a config.json that all decoder families share."""

from typing import Any

from jaxinfer.errors import quoted
from jaxinfer.models.config import Activation, DecoderConfig
from jaxinfer.models.fields import Fields
from jaxinfer.models.rope_fields import read_rope

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


def read_decoder(fields: Fields, *, windows: tuple[int | None, ...] | None = None, **differences: Any) -> DecoderConfig:
    """The shared fields of a config.json, with what the family says beside: windows, biases, norms.

    Where they are absent, rms_norm_eps is 1e-6 and hidden_act silu: transformers' defaults in all these families.
    Raises ModelError, naming the field, for what is missing, of a wrong type or unknown.
    """
    refuse_other_forms(fields)
    layers = fields.integer("num_hidden_layers")
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    if "head_dim" not in fields and heads > 0 and hidden % heads:
        raise fields.error("hidden_size", f"{quoted(hidden)} is not a multiple of num_attention_heads, {quoted(heads)}")
    rope, context = read_rope(fields)
    config = DecoderConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", hidden // max(heads, 1)),
        max_position_embeddings=context,
        windows=(None,) * layers if windows is None else windows,
        rms_norm_eps=fields.number("rms_norm_eps", DecoderConfig.rms_norm_eps),
        activation=fields.choice("hidden_act", _ACTIVATIONS, DecoderConfig.activation),
        rope=rope,
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        bos_token_ids=fields.token_ids("bos_token_id"),
        eos_token_ids=fields.token_ids("eos_token_id"),
        **differences,
    )
    fields.finish()
    return config


def refuse_other_forms(fields: Fields) -> None:
    """Raises ModelError for weights or code of a form that is not read."""
    if "quantization_config" in fields:
        raise fields.error("quantization_config", "is set; quantised checkpoints are not supported yet")
    if "auto_map" in fields:
        raise fields.error("auto_map", "asks for code from the model's folder, which is never run")
    fields.only("rope_interleaved", False)
    fields.only("partial_rotary_factor", 1.0)
    fields.only("pruned_heads", {})


def sliding_layers(fields: Fields, layers: int, default: list[bool]) -> list[bool]:
    """Which layers have a window: from `layer_types`, or `default` where that is absent."""
    types = fields.get("layer_types")
    if types is None:
        return default
    if not isinstance(types, list) or len(types) != layers or not all(map(_is_layer_type, types)):
        raise fields.error("layer_types", f"must be {quoted(layers)} names out of {', '.join(_LAYER_TYPES)}")
    return [_LAYER_TYPES[name] for name in types]


def _is_layer_type(name: object) -> bool:
    return isinstance(name, str) and name in _LAYER_TYPES


def typed_windows(fields: Fields, layers: int, window: int | None, default: list[bool]) -> tuple[int | None, ...]:
    """A window for each layer of `sliding_layers`."""
    sliding = sliding_layers(fields, layers, default)
    if any(sliding) and window is None:
        raise fields.error("layer_types", "has sliding_attention, but no sliding_window is set")
    return tuple(window if slides else None for slides in sliding)
