"""Scales of keys and values that are kept in few bits: where checkpoints have them. No jax."""

import logging
from collections.abc import Iterator
from dataclasses import replace

from jaxinfer.checkpoint.formats.parts.scales import PositiveScale
from jaxinfer.checkpoint.formats.settings.unused import KV_SCALES
from jaxinfer.checkpoint.safetensors import Checkpoint
from jaxinfer.checkpoint.sources import Filled, Joined, Source, Tensor
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.tensor_names import TensorNames
from jaxinfer.quantization.kv import SCALED, ScaledKVCodes

log = logging.getLogger(__name__)

_ONE_NUMBER = ((), (1, 1), (1, 1, 1))
"""Shapes that a scale may have, beside [1]."""


def with_kv_scales(config: DecoderConfig, checkpoint: Checkpoint) -> DecoderConfig:
    """The decoder with the names of its layers' scales, where the checkpoint has some of the type that keys and values
    are kept in. Raises ModelError for a layer with a scale of one of them alone."""
    codes, found = config.layers[0].mixer.kv.codes, checkpoint.names
    if codes not in SCALED:
        return config
    fitting = _names(config.names) if _scales_of(config) == codes else iter(())
    layers = [config.names.of_body(f"{config.names.layers}{layer}.") for layer in range(config.num_layers)]
    known = (names for names in fitting if any(f"{layer}{name}" in found for layer in layers for name in names))
    names = next(known, None)
    for pair in () if names is None else ([f"{layer}{name}" for name in names] for layer in layers):
        there, absent = ([name for name in pair if (name in found) is held] for held in (True, False))
        if there and absent:
            raise checkpoint.error(
                there[0], f"has no {absent[0]} beside it: a layer has a scale of keys and one of values, or neither"
            )
    if names is None and (other := sorted(name for name in found if name.endswith(KV_SCALES))):
        log.warning("%s and scales like it are not used: they are not one number a layer for %s", other[0], codes)
    return replace(config, kv_scales=names)


def checkpoint_kv_scales(config: DecoderConfig, checkpoint: Checkpoint) -> tuple[ScaledKVCodes, list[Source]] | None:
    """Whatever keys and values are kept in: the type that a checkpoint's scales are for, and those of each layer, [2].
    None where it has none."""
    codes = _scales_of(config)
    if codes is None or (kept := with_kv_scales(config.keeping(codes), checkpoint)).kv_scales is None:
        return None
    prefixes = (config.names.of_body(f"{config.names.layers}{layer}.") for layer in range(config.num_layers))
    return codes, [kv_scale(kept, prefix) for prefix in prefixes]


def _scales_of(config: DecoderConfig) -> ScaledKVCodes | None:
    """The type that a checkpoint's scales of keys and values, should it have some, are for."""
    return "float8_e4m3fn" if config.declared is None else config.declared.kv_codes


def kv_scale(config: DecoderConfig, prefix: str) -> Source:
    """[2]: the scales of a layer's keys and values, both 1 where the checkpoint has none."""
    if config.kv_scales is None:
        return Filled((2,), 1.0)
    one, other = (Tensor(f"{prefix}{name}", (1,), others=_ONE_NUMBER) for name in config.kv_scales)
    return Joined((PositiveScale(one), PositiveScale(other)))


def _names(names: TensorNames) -> Iterator[tuple[str, str]]:
    """Yield the names of the scales of keys and values: those of llm-compressor, modelopt, AutoFP8, and of early
    AutoFP8, which has one for both."""
    module = names.out.rpartition(".")[0]
    yield f"{module}.k_scale", f"{module}.v_scale"
    yield f"{names.k}.k_scale", f"{names.v}.v_scale"
    yield f"{names.k}.output_scale", f"{names.v}.output_scale"
    yield f"{module}.kv_scale", f"{module}.kv_scale"
