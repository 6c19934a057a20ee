"""Structure of a model and its memory, by the first two stages and by blocks that fit on shapes. Allocates nothing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jaxinfer_kernels.layouts import platform_layout

from jaxinfer.build.sized import Sized, size
from jaxinfer.config import CacheConfig, EngineConfig
from jaxinfer.errors import ModelError, ParameterError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.models.plan import plan_model
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.quantization.made import MADE
from jaxinfer.runner.fit.cpu_memory import cpu_blocks, machine_memory
from jaxinfer.runner.fit.inspection import (
    GroupBytes,
    active_parameters,
    group_bytes,
    kv_token_bytes,
    parameters,
    weight_bytes,
)
from jaxinfer.runner.fit.memory import fit_blocks, sequence_blocks
from jaxinfer.runner.fit.sizes import Device
from jaxinfer.runner.platform.values import platform_name, usable_memory
from jaxinfer.runner.step.stage import by_group

_PLAIN = ("float32", "bfloat16")
_MOST_BLOCKS = 2**31


class StageBytes(NamedTuple):
    """first, last: its layers."""

    first: int
    last: int
    weight_bytes: int


class Inspection(NamedTuple):
    """Sizes in bytes, of one device of the mesh, of that of the fullest stage. stages: none where there is one.
    layers: how many there are of a kind. weight_bytes: by the ways to hold them. memory_bytes: that everything
    together may take; None on a CPU, where it is not bound. blocks: of every KV group; none if the weights do not fit.
    sequences: of `length` tokens each that fit; None: not asked for."""

    stages: list[StageBytes]
    layers: dict[str, int]
    context: int
    parameters: int
    active_parameters: int
    weight_bytes: dict[str, int]
    kv_groups: list[GroupBytes]
    platform: str
    memory_bytes: int | None
    block_size: int
    blocks: list[int]
    length: int | None
    sequences: int | None


def usable_device(share: float) -> Device:
    """Describe the first device of this machine; its memory is what may be taken of it. share: of all of it."""
    return Device(platform_name(), usable_memory(share))


def inspect_model(
    config: EngineConfig,
    decoder: DecoderConfig,
    mesh: MeshConfig,
    device: Device,
    dtype: jnp.dtype,
    block_size: int,
    length: int | None = None,
) -> Inspection:
    """decoder: not quantised yet as settings ask for. mesh, device: which need not be here; its memory is that which
    may be taken. length: tokens of the sequences that are counted, if they are. Raises ParameterError where the model
    cannot be split so."""
    plan = plan_model(decoder, dtype)
    decoder, counted = decoder.over(*mesh.parts), None
    # Sizes of steps follow from all of a device's memory, and nothing here from them.
    sized = size(config, decoder.quantised(config.load.quantization), mesh, device._replace(memory=None), dtype)
    weights = _stage_weights(sized)
    if device.memory is None:
        blocks = _cpu_blocks(config, sized, device, block_size, weights)
    elif max(weights) >= device.memory:
        blocks, counted = [], None if length is None else 0
    else:
        tokens = (kv_token_bytes(part, dtype, device.platform, mesh.of_stage) for part in sized.parts)
        costs = [[block_size * token for token in each] for each in tokens]
        room = zip(weights, costs, strict=True)
        fits = [fit_blocks(device.memory - taken, each, [_MOST_BLOCKS] * len(each)) for taken, each in room]
        blocks = [min(counts) for counts in by_group(sized.stages, fits)]
        if length is not None:
            every = zip(sized.parts, costs, fits, strict=True)
            counted = min(_sequences(*each, block_size, length) for each in every)
    spans = zip(sized.spans, weights, strict=True) if mesh.stages > 1 else ()
    return Inspection(
        stages=[StageBytes(first, last - 1, taken) for (first, last), taken in spans],
        layers=dict(Counter(_kind(layer) for layer in decoder.layers)),
        context=decoder.max_position_embeddings,
        parameters=sum(map(parameters, (*plan.weights, *plan.head))),
        active_parameters=active_parameters(plan),
        weight_bytes=_weight_bytes(config, decoder, mesh, device._replace(memory=None), dtype),
        kv_groups=_kv_groups(sized),
        platform=device.platform,
        memory_bytes=device.memory,
        block_size=block_size,
        blocks=blocks,
        length=length,
        sequences=counted,
    )


def _weight_bytes(
    config: EngineConfig, decoder: DecoderConfig, mesh: MeshConfig, device: Device, dtype: jnp.dtype
) -> dict[str, int]:
    """Return the bytes of the weights for each way to hold them that the model's sizes allow; a quantised checkpoint is
    held in its own alone."""

    def fullest(decoder: DecoderConfig, dtype: jnp.dtype) -> int:
        return max(_stage_weights(size(config, decoder, mesh, device, dtype)))

    if decoder.checkpoint_forms:
        return {decoder.checkpoint_forms: fullest(decoder, dtype)}
    found = {name: fullest(decoder, jnp.dtype(name)) for name in _PLAIN}
    for name in MADE:
        try:
            found[name] = fullest(decoder.quantised(name), dtype)
        except (ModelError, ParameterError):  # sizes, or shards, that the scheme does not allow
            continue
    return found


def _stage_weights(sized: Sized) -> list[int]:
    """Bytes of the weights of each stage on one device."""
    return [weight_bytes(part, sized.dtype, sized.platform, sized.mesh.of_stage) for part in sized.parts]


def _kv_groups(sized: Sized) -> list[GroupBytes]:
    """Describe each KV group of the whole as the stage with most of its layers keeps it."""
    layout = platform_layout(sized.platform)
    each = [[group_bytes(one, layout, sized.dtype, sized.mesh.of_stage) for one in p.kv_groups] for p in sized.parts]
    return [max(own, key=lambda group: group.layers) for own in by_group(sized.stages, each)]


def _kind(layer: LayerKind) -> str:
    """One kind of layer, for people."""
    attention, experts = layer.mixer, layer.experts
    heads = f"{attention.num_heads}/{attention.num_kv_heads} heads of {attention.head_dim}"
    window = "" if attention.window is None else f", window {attention.window:,}"
    mlp = f"MLP {layer.mlp.size:,}" if experts is None else f"{experts.chosen} of {experts.count} experts"
    return f"({heads}{window}, {mlp})"


def _cpu_blocks(
    config: EngineConfig, sized: Sized, device: Device, block_size: int, weights: Sequence[int]
) -> list[int]:
    """Return the blocks of each group that an engine with default flags has on this machine. weights: bytes of each
    stage on a device."""
    config = replace(config, cache=CacheConfig(block_size=block_size))
    shapes = size(config, sized.decoder, sized.mesh, device, sized.dtype).shapes
    devices = sized.mesh.of_stage.size
    tokens = kv_token_bytes(sized.decoder, sized.dtype, sized.platform, sized.mesh)
    costs = [token * block_size * devices for token in tokens]
    return cpu_blocks(costs, shapes, machine_memory(), sum(weights) * devices).blocks


def _sequences(
    decoder: DecoderConfig, costs: Sequence[int], blocks: Sequence[int], block_size: int, length: int
) -> int:
    """Count the sequences of `length` tokens that have all their blocks at once. Groups share the bytes of all but a
    block each, which no sequence gets."""
    counts = sequence_blocks([group.window for group in decoder.kv_groups], length, block_size)
    each = sum(cost * count for cost, count in zip(costs, counts, strict=True))
    return sum(cost * (count - 1) for cost, count in zip(costs, blocks, strict=True)) // each
