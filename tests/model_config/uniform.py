"""Decoders whose layers differ in their windows at most."""

from dataclasses import replace
from typing import Any

from jaxinfer.model_config.decoder import with_windows
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import AttentionKind, LayerKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind


def uniform_decoder(
    attention: AttentionKind, mlp: MlpKind | ExpertsKind, windows: tuple[int | None, ...], **options: Any
) -> DecoderConfig:
    """Layers of one kind with these windows."""
    return DecoderConfig(layers=with_windows(LayerKind(attention, mlp), windows), **options)


def windows_of(config: DecoderConfig) -> tuple[int | None, ...]:
    """The window of every layer."""
    return tuple(layer.mixer.window for layer in config.layers)


def kind_of(config: DecoderConfig) -> LayerKind:
    """What all layers are, their windows left out."""
    kinds = {replace(layer, mixer=replace(layer.mixer, window=None)) for layer in config.layers}
    (kind,) = kinds
    return kind


def fields_of(config: DecoderConfig) -> dict[str, Any]:
    """Every field by name: the model's, its layers', their attention's and their MLP's."""
    kind = kind_of(config)
    parts = (config, kind, kind.mlp, kind.mixer)
    return {name: getattr(part, name) for part in parts for name in part.__dataclass_fields__} | {
        "num_layers": config.num_layers,
        "windows": windows_of(config),
    }
