"""Structure of a model, and its memory on this machine, from its declaration alone."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxinfer_kernels import KVLayout
from jaxinfer_kernels.cpu.packed import values_shape
from jaxinfer_kernels.layouts import platform_layout

from jaxinfer.config import CacheConfig, EngineConfig
from jaxinfer.errors import ModelError, ParameterError
from jaxinfer.model_config.decoder_config import DecoderConfig, LayerGroup
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.models.plan import ModelPlan, plan_model
from jaxinfer.models.weight import Weight
from jaxinfer.parallel.auto_mesh import Taken
from jaxinfer.parallel.mesh import shard_shape
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.quantization.made import MADE
from jaxinfer.runner.cpu_memory import cpu_blocks, machine_memory
from jaxinfer.runner.device_weights import device_bytes, placed_plan
from jaxinfer.runner.memory import fit_blocks, sequence_blocks
from jaxinfer.runner.pipeline.spans import layer_spans
from jaxinfer.runner.platform import platform_name, usable_memory
from jaxinfer.runner.sizes import Device as Sized
from jaxinfer.runner.sizes import plan_shapes

_PLAIN = ("float32", "bfloat16")
_MOST_BLOCKS = 2**31


class Device(NamedTuple):
    """One that holds a model. memory: bytes that everything together may take; None on a CPU, where it is not bound."""

    platform: str
    memory: int | None


def this_device(share: float) -> Device:
    """The first of this machine. share: of its memory that may be taken."""
    return Device(platform_name(), usable_memory(share))


def inspect_model(
    config: DecoderConfig,
    dtype: jnp.dtype,
    quantization: str,
    block_size: int,
    device: Device,
    length: int | None = None,
    mesh: MeshConfig = ONE_DEVICE,
    layers: str | None = None,
) -> dict[str, Any]:
    """Sizes in bytes, of one device of the mesh, of that of the fullest stage; block_size in tokens. Allocates nothing.

    quantization: how it holds the weights, a name of `DecoderConfig.quantised`. length: tokens of the sequences that
    are counted, if they are. mesh: of devices that need not be here. layers: of each stage, as `--pipeline-layers` has
    them. Raises ParameterError where the model cannot be split so.
    """
    plan, (platform, memory) = plan_model(config, dtype), device
    weights = (*plan.weights, *plan.head)
    config = config.over(*mesh.parts)
    stages = _stages(config.quantised(quantization), dtype, platform, mesh, layers)
    groups = _kv_groups(config, stages, platform_layout(platform), dtype, mesh.of_stage)
    counted = None
    if memory is None:
        blocks = _cpu_blocks(config, stages, dtype, platform, mesh, block_size)
    else:
        fits = [_fit(stage, dtype, platform, mesh.of_stage, memory, block_size) for stage in stages]
        blocks = _least_blocks(config, stages, fits)
        if length is not None:
            each_counted = (_sequences(*each, block_size, length) for each in zip(stages, fits, strict=True))
            counted = min(each_counted) if blocks else 0
    spans = [(stage.span.first, stage.num_layers) for stage in stages if stage.span is not None]
    sizes = [_stage_bytes(stage, dtype, platform, mesh.of_stage) for stage in stages]
    each = [(first, first + count - 1, size) for (first, count), size in zip(spans, sizes, strict=False)]
    return {
        "stages": [{"first": first, "last": last, "weight_bytes": size} for first, last, size in each],
        "layers": dict(Counter(_kind(layer) for layer in config.layers)),
        "context": config.max_position_embeddings,
        "parameters": sum(map(_size, weights)),
        "active_parameters": active_parameters(plan),
        "weight_bytes": _weight_bytes(config, dtype, platform, mesh, layers),
        "kv_groups": groups,
        "platform": platform,
        "memory_bytes": memory,
        "block_size": block_size,
        "blocks": blocks,
        "length": length,
        "sequences": counted,
    }


def taken_of_device(config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig) -> Taken:
    """Return the bytes on one device of a mesh, which need not be present: of the weights, and of keys and values of
    one sequence as long as the context. Raises ParameterError if the model cannot be split so."""
    config = config.over(*mesh.parts)
    context, layout = config.max_position_embeddings, platform_layout(platform)
    groups = [_kv_group(group, layout, dtype, mesh) for group in config.kv_groups]
    tokens = [context if group["window"] is None else min(context, group["window"]) for group in groups]
    kv = sum(count * group["token_bytes"] for count, group in zip(tokens, groups, strict=True))
    return Taken(_bytes(config, dtype, platform, mesh), kv)


def kv_token_bytes(config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig) -> tuple[int, ...]:
    """Bytes that a device keeps of a token, an entry a KV group; of stages one in each together. config: over the
    mesh's parts."""
    layout = platform_layout(platform)
    return tuple(_kv_group(group, layout, dtype, mesh)["token_bytes"] for group in config.kv_groups)


def _weight_bytes(
    config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig, layers: str | None
) -> dict[str, int]:
    """Return the bytes of the weights for each way to hold them that the model's sizes allow; a quantised checkpoint is
    held in its own alone."""
    if config.checkpoint_forms:
        return {config.checkpoint_forms: _bytes(config, dtype, platform, mesh, layers)}
    found = {name: _bytes(config, jnp.dtype(name), platform, mesh, layers) for name in _PLAIN}
    for name in MADE:
        try:
            found[name] = _bytes(config.quantised(name), dtype, platform, mesh, layers)
        except (ModelError, ParameterError):  # sizes, or shards, that the scheme does not allow
            continue
    return found


def _bytes(config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig, layers: str | None = None) -> int:
    """Return the bytes of weights on a device of the stage that holds the most."""
    stages = _stages(config, dtype, platform, mesh, layers)
    return max(_stage_bytes(stage, dtype, platform, mesh.of_stage) for stage in stages)


def _stages(
    config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig, layers: str | None
) -> list[DecoderConfig]:
    return [config.stage(*span) for span in layer_spans(layers, config, dtype, platform, mesh)]


def _stage_bytes(config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig) -> int:
    plan = placed_plan(config, dtype, platform, mesh)
    return sum(device_bytes(one, platform, mesh) for one in (*plan.weights, *plan.head))


def count_parameters(model: LoadedModel) -> int:
    """Numbers among the weights and the head, also packed ones; a tied head counts once."""
    arrays = {id(array): array for array in (*model.weights, *model.head)}.values()
    return sum(int(np.prod(values_shape(array), dtype=np.int64)) for array in arrays)


def active_parameters(plan: ModelPlan) -> int:
    """Parameters that one token's step uses: of every layer's experts those that are chosen, of an embedding that is
    not the head too one row."""
    total = 0
    for leaf in (*plan.weights, *plan.head):
        size = _size(leaf)
        if leaf.path == ("embed",) and plan.head:
            size = plan.config.hidden_size
        if "expert" in leaf.axes:
            assert leaf.layers is not None
            experts = plan.config.layers[leaf.layers[0]].experts
            assert experts is not None
            size = size * experts.chosen // experts.count
        total += size
    return total


def _size(leaf: Weight) -> int:
    """Parameters that it has; scales of keys and values are none."""
    if str(leaf.path[-1]) == "kv_scale":
        return 0
    return int(np.prod(leaf.shape, dtype=np.int64))


def _kind(layer: LayerKind) -> str:
    """One kind of layer, for people."""
    attention, experts = layer.mixer, layer.experts
    heads = f"{attention.num_heads}/{attention.num_kv_heads} heads of {attention.head_dim}"
    window = "" if attention.window is None else f", window {attention.window:,}"
    mlp = f"MLP {layer.mlp.size:,}" if experts is None else f"{experts.chosen} of {experts.count} experts"
    return f"({heads}{window}, {mlp})"


def _kv_groups(
    config: DecoderConfig, stages: Sequence[DecoderConfig], layout: KVLayout, dtype: jnp.dtype, mesh: MeshConfig
) -> list[dict[str, Any]]:
    """Describe each KV group of the whole as the stage with most of its layers keeps it. mesh: of a stage."""
    found: list[dict[str, Any]] = []
    for whole in config.kv_groups:
        own = [one for stage in stages for one in stage.kv_groups if one.kv == whole.kv]
        found.append(_kv_group(max(own, key=lambda group: len(group.layers)), layout, dtype, mesh))
    return found


def _kv_group(group: LayerGroup, layout: KVLayout, dtype: jnp.dtype, mesh: MeshConfig) -> dict[str, Any]:
    """Bytes that a device keeps of a token in a group's layers (`token_bytes`), and what of them is padding."""
    kv, layers = group
    shape = layout.shape(
        layers=len(layers), pages=1, page_size=1, kv_heads=kv.heads, key_dim=kv.key_dim, value_dim=kv.value_dim
    )
    part = shard_shape(mesh, layout.axes, shape)
    heads = part[layout.axes.index("kv_heads")]
    kept = dtype if kv.codes is None else jnp.dtype(kv.codes)
    token = int(np.prod(part)) * kept.itemsize
    used = len(layers) * heads * (kv.key_dim + kv.value_dim) * kept.itemsize
    sizes = {"token_bytes": token, "padding_bytes": token - used}
    return {"layers": len(layers), "window": kv.window, "dtype": kept.name, **sizes}


class _Fit(NamedTuple):
    """Fit of one stage: bytes of a block of each of its groups, and blocks; none if the weights do not fit."""

    costs: list[int]
    blocks: list[int]


def _fit(stage: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig, memory: int, block_size: int) -> _Fit:
    """memory: bytes of a device."""
    costs = [token * block_size for token in kv_token_bytes(stage, dtype, platform, mesh)]
    left = memory - _stage_bytes(stage, dtype, platform, mesh)
    return _Fit(costs, fit_blocks(left, costs, [_MOST_BLOCKS] * len(costs)) if left > 0 else [])


def _cpu_blocks(
    config: DecoderConfig,
    stages: Sequence[DecoderConfig],
    dtype: jnp.dtype,
    platform: str,
    mesh: MeshConfig,
    block_size: int,
) -> list[int]:
    """Return the blocks of each group that an engine with default flags has on this machine."""
    devices = mesh.of_stage.size
    costs = [token * block_size * devices for token in kv_token_bytes(config, dtype, platform, mesh)]
    asked = EngineConfig(cache=CacheConfig(block_size=block_size))
    shapes = plan_shapes(asked, config, Sized(platform, None), mesh.data, mesh.stages)
    weights = sum(_stage_bytes(stage, dtype, platform, mesh.of_stage) * devices for stage in stages)
    return cpu_blocks(costs, shapes, machine_memory(), weights).blocks


def _least_blocks(config: DecoderConfig, stages: Sequence[DecoderConfig], fits: Sequence[_Fit]) -> list[int]:
    """Return, for each group of the whole, the blocks of the stage that has room for the fewest; none if a stage has no
    room."""
    if not all(fit.blocks for fit in fits):
        return []
    found: dict[object, int] = {}
    for stage, fit in zip(stages, fits, strict=True):
        for group, count in zip(stage.kv_groups, fit.blocks, strict=True):
            found[group.kv] = min(count, found.get(group.kv, count))
    return [found[group.kv] for group in config.kv_groups]


def _sequences(config: DecoderConfig, fit: _Fit, block_size: int, length: int) -> int:
    """Count the sequences of `length` tokens that have all their blocks at once. Groups share the bytes of all but a
    block each, which no sequence gets."""
    counts = sequence_blocks([group.window for group in config.kv_groups], length, block_size)
    each = sum(cost * count for cost, count in zip(fit.costs, counts, strict=True))
    return sum(cost * (count - 1) for cost, count in zip(fit.costs, fit.blocks, strict=False)) // each
