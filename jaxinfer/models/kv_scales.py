"""Scales of keys and values that are kept in few bits: where checkpoints have them. No jax."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from jaxinfer.checkpoint.quantized.scales import PositiveScale
from jaxinfer.checkpoint.sources import Filled, Joined, Source, Tensor
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.tensor_names import TensorNames
from jaxinfer.quantization.kv import ScaledKVCodes


def with_kv_scales(config: DecoderConfig, found: Collection[str]) -> DecoderConfig:
    """The decoder with the names of its layers' scales, where a checkpoint of these tensors has some of the type that
    keys and values are kept in."""
    scaled = [layer for layer, kind in enumerate(config.layers) if kind.attention.kv.scaled]
    if not scaled or scales_of(config) != config.layers[scaled[0]].attention.kv.codes:
        return config
    first = config.names.of_body(f"{config.names.layers}{scaled[0]}.")
    known = next((names for names in _names(config.names) if f"{first}{names[0]}" in found), None)
    return replace(config, kv_scales=known)


def scales_of(config: DecoderConfig) -> ScaledKVCodes | None:
    """The type that a checkpoint's scales of keys and values, should it have some, are for."""
    return "float8_e4m3fn" if config.declared is None else config.declared.kv_codes


def kv_scale(config: DecoderConfig, prefix: str) -> Source:
    """[2]: the scales of a layer's keys and values, both 1 where the checkpoint has none."""
    if config.kv_scales is None:
        return Filled((2,), 1.0)
    one, other = (PositiveScale(Tensor(f"{prefix}{name}", (1,), others=((),))) for name in config.kv_scales)
    return Joined((one, other))


def _names(names: TensorNames) -> Iterator[tuple[str, str]]:
    """Those of llm-compressor, modelopt, AutoFP8, and AutoFP8's first, of keys and values alike."""
    module = names.out.rpartition(".")[0]
    yield f"{module}.k_scale", f"{module}.v_scale"
    yield f"{names.k}.k_scale", f"{names.v}.v_scale"
    yield f"{names.k}.output_scale", f"{names.v}.output_scale"
    yield f"{module}.kv_scale", f"{module}.kv_scale"
