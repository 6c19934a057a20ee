"""The parts of a config.json that decoder families share: what a family differs in, it passes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxinfer.checkpoint.formats.registry import read_quantization
from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.errors import quoted
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.formulas.activations import ACTIVATIONS
from jaxinfer.model_config.formulas.norms import NORMS
from jaxinfer.model_config.layer_kind import AttentionKind, LayerKind, NormKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind
from jaxinfer.model_config.rope import read_rope
from jaxinfer.model_config.tensor_names import TensorNames

_DECLARED = {declared: name for name, activation in ACTIVATIONS.items() for declared in activation.declared}
_LAYER_TYPES = {"full_attention": False, "sliding_attention": True}
_EPS = 1e-6


def read_layer(
    config: ConfigReader,
    *,
    attention: dict[str, Any] | None = None,
    mlp: dict[str, Any] | None = None,
    **differences: Any,
) -> LayerKind:
    """A layer of attention and a gated MLP between norms; the arguments are what a family's fields differ in."""
    return LayerKind(
        read_attention(config, **(attention or {})),
        read_mlp(config, **(mlp or {})),
        **{"norm": read_norm(config), **differences},
    )


def read_layers(config: ConfigReader) -> int:
    """`num_hidden_layers`."""
    count = config.integer("num_hidden_layers")
    if count < 1:
        raise config.error("num_hidden_layers", f"must be at least 1, not {quoted(count)}")
    return count


def read_attention(config: ConfigReader, *, kv_heads: int | None = None, **differences: Any) -> AttentionKind:
    """From `num_attention_heads`, `num_key_value_heads`, `head_dim` and the fields of rotary embedding.

    kv_heads: of a file without `num_key_value_heads`; None: as many as heads, which is also what null means.
    """
    heads, dim = config.integer("num_attention_heads"), read_head_dim(config)
    if "rope" not in differences:
        differences["rope"] = read_rope(config).config
    declared = config.nullable_integer("num_key_value_heads", heads if kv_heads is None else kv_heads)
    return AttentionKind(heads, heads if declared is None else declared, dim, **differences)


def read_head_dim(config: ConfigReader) -> int:
    """`head_dim`, by default the hidden size over the number of heads."""
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    if "head_dim" not in config and heads > 0 and hidden % heads:
        raise config.error("hidden_size", f"{quoted(hidden)} is not a multiple of num_attention_heads, {quoted(heads)}")
    return config.integer("head_dim", hidden // max(heads, 1))


def read_mlp(config: ConfigReader, *, experts: ExpertsKind | None = None, **differences: Any) -> MlpKind | ExpertsKind:
    """From `intermediate_size` and `hidden_act`; silu where that is absent, as in transformers. experts: these, with
    that activation, instead of an MLP."""
    if "activation" not in differences:
        differences["activation"] = read_activation(config, "hidden_act", "silu")
    if experts is not None:
        return replace(experts, **differences)
    return MlpKind(config.integer("intermediate_size"), **differences)


def read_activation(config: ConfigReader, key: str, default: str) -> str:
    """An activation's name in ACTIVATIONS, by one of its names in config.json."""
    return config.choice(key, _DECLARED, default) if key in config else default


def read_norm(config: ConfigReader, **differences: Any) -> NormKind:
    """From `rms_norm_eps`, 1e-6 where it is absent, as in transformers."""
    return NormKind(eps=config.number(NORMS["rms"].eps, _EPS), **differences)


def read_decoder(
    config: ConfigReader, layers: Sequence[LayerKind], *, names: TensorNames | None = None, **differences: Any
) -> DecoderConfig:
    """The decoder of these layers, with the fields that all families share. Reads the last of `config`.

    Raises ModelError, naming the field, for what is missing, of a wrong type or unknown.
    """
    refuse_other_forms(config)
    if "max_position_embeddings" not in differences:
        differences["max_position_embeddings"] = read_rope(config).context
    decoder = DecoderConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        layers=tuple(layers),
        **{
            "norm": layers[0].norm if layers else NormKind(),
            "tie_word_embeddings": config.flag("tie_word_embeddings"),
            "bos_token_ids": config.token_ids("bos_token_id"),
            "eos_token_ids": config.token_ids("eos_token_id"),
            "names": names or TensorNames(),
            "declared": read_quantization(config),
            **differences,
        },
    )
    config.finish()
    return decoder


def refuse_other_forms(config: ConfigReader) -> None:
    """Raises ModelError for layers of a form that is not read."""
    config.only("rope_interleaved", False)
    config.only("pruned_heads", {})


def sliding_layers(config: ConfigReader, layers: int, default: list[bool]) -> list[bool]:
    """Return for each layer whether it has a window: from `layer_types`, or `default` if that is absent."""
    types = config.get("layer_types")
    if types is None:
        return default
    if not isinstance(types, list) or len(types) != layers or not all(map(_is_layer_type, types)):
        raise config.error("layer_types", f"must be {quoted(layers)} names out of {', '.join(_LAYER_TYPES)}")
    return [_LAYER_TYPES[name] for name in types]


def _is_layer_type(name: object) -> bool:
    return isinstance(name, str) and name in _LAYER_TYPES


def with_windows(layer: LayerKind, windows: Sequence[int | None]) -> tuple[LayerKind, ...]:
    """Layers of one kind, each with a window of its own."""
    kinds = {w: replace(layer, mixer=replace(layer.mixer, window=w)) for w in dict.fromkeys(windows)}
    return tuple(kinds[window] for window in windows)


def layers_by_window(full: LayerKind, sliding: LayerKind, windows: Sequence[int | None]) -> tuple[LayerKind, ...]:
    """`sliding` with each of the windows; `full` where there is none."""
    pairs = zip(with_windows(full, windows), with_windows(sliding, windows), strict=True)
    return tuple(one if one.mixer.window is None else other for one, other in pairs)


def typed_windows(config: ConfigReader, window: int | None, default: list[bool]) -> tuple[int | None, ...]:
    """A window for each layer of `sliding_layers`."""
    layers = read_layers(config)
    sliding = sliding_layers(config, layers, default)
    if any(sliding) and window is None:
        raise config.error("layer_types", "has sliding_attention, but no sliding_window is set")
    return tuple(window if slides else None for slides in sliding)
