"""Cases of the check: the engine's own step programs over a model without values, on one device or on a mesh."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxinfer_kernels import KVLayout
from jaxinfer_kernels.check.cases import Case, Kept, Lowering, array_bytes, kept_pages, kept_weights
from jaxinfer_kernels.check.collectives import Exchange
from jaxinfer_kernels.check.sizes import size
from jaxinfer_kernels.check.targets import Target
from jaxinfer_kernels.layouts import platform_layout
from program_models import Model

from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.layers.dispatch import DispatchForm
from jaxinfer.model_config.decoder_config import DecoderConfig, LayerGroup
from jaxinfer.models.weight import Weight
from jaxinfer.parallel.mesh import make_mesh, platform_kind, shard_shape
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.plan.stand_in import attends, stand_in
from jaxinfer.quantization.array import four_bits
from jaxinfer.runner.fit.device_weights import placed_plan
from jaxinfer.runner.programs.compiled import Programs
from jaxinfer.runner.programs.table import Name
from jaxinfer.runner.step.draft_model import with_draft
from jaxinfer.speculation import Speculation

DTYPE = jnp.dtype("bfloat16")
# Tokens are a multiple of 15 and blocks an odd count, so that no activation has the size of a weight or of the blocks.
_ROWS, _TOKENS, _LENGTH = 256, 1920, 8192
BLOCK_SIZE = {"tpu": 128, "cuda": 64}  # as runner/platform/values.py has it
_KV_BLOCKS, _WINDOW_BLOCKS = 2049, 1025
_DECODE_STEPS = 8
WITH_KV = ("decode", "mixed", "copies", "multi_step", "speculate", "draft", "verify")
FITTING_SEQUENCES, FITTING_LENGTH = 24, 2048
"""Sequences, and tokens of each, for models that a target holds whole together with their KV."""


def model_cases(
    target: Target,
    model: Model,
    layers: int | None,
    backend: str,
    names: Callable[[EngineShapes], Sequence[Name]],
    shapes_of: Callable[[DecoderConfig, int], EngineShapes] | None = None,
    *,
    mesh: MeshConfig = ONE_DEVICE,
    mesh_name: str = "",
    form: DispatchForm = "reduce",
    exchange: Callable[[DecoderConfig, Name], Exchange] | None = None,
    draft: Model | None = None,
) -> list[Case]:
    """shapes_of: of the model's config and a block's tokens; by default those of large steps. mesh_name: what the table
    calls the mesh. form: how rows come to experts of other devices. exchange: what devices may send each other in a
    program. draft: what drafts for the model, which has one KV group."""
    config = model.config(layers).over(*mesh.parts)
    block_size, platform = BLOCK_SIZE[target.platform], platform_kind(target.platform)
    shapes = replace((shapes_of or large_shapes)(config, block_size), shards=mesh.data)
    attending = [attends(config, group, backend, block_size, DTYPE) for group in config.kv_groups]
    drafts = None if draft is None else draft.config(layers).over(*mesh.parts)
    held = held_arrays(config, shapes, mesh, target, drafts)
    taken = f", {shapes.max_num_seqs} x {shapes.max_model_len} tokens" if shapes_of else ""
    on = (f", {mesh_name}" if mesh_name else "") + (", rows exchanged" if form == "exchange" else "")
    run_by = " and ".join(dict.fromkeys((backend, *attending)))
    made = [one for one in (config, drafts) if one is not None]
    programs = cache(partial(_programs, made, shapes, mesh, platform, backend, form))
    title = model.title if draft is None else f"{model.title} with drafts of {draft.title}"
    return [
        Case(
            f"{name[0]} {name[1]}".removesuffix(" 0"),
            f"{title}, {config.num_layers} layers{taken}{on}, {run_by}",
            partial(_lower, programs, mesh, name),
            held.kept,
            held.kv_bytes if name[0] in WITH_KV else 0,
            held.too_many(target),
            exchange=exchange and exchange(config, name),
        )
        for name in names(shapes)
    ]


class Held(NamedTuple):
    """Memory of a device. kept: arrays that a program must not copy. kv_bytes: bytes of KV blocks. bytes: of KV blocks
    and weights."""

    kept: tuple[Kept, ...]
    kv_bytes: int
    bytes: int

    def too_many(self, target: Target) -> str:
        """Why a target does not hold it; empty: it does."""
        taken = f"weights and KV blocks take {size(self.bytes)}, more than a device has"
        return "" if self.bytes < target.hbm_bytes else taken


def held_arrays(
    config: DecoderConfig, shapes: EngineShapes, mesh: MeshConfig, target: Target, drafts: DecoderConfig | None = None
) -> Held:
    """config: over the mesh's parts. drafts: of the model that drafts."""
    plan = placed_plan(config, DTYPE, platform_kind(target.platform), mesh)
    layout = platform_layout(target.platform)
    pools = list(zip(config.kv_groups, shapes.groups, strict=True))
    if drafts is not None:
        pools += [(group, shapes.groups[0]) for group in drafts.kv_groups]
    kv = [_blocks(group, pool, shapes.block_size, layout, mesh) for group, pool in pools]
    kv_bytes = sum(array_bytes(blocks.shape, blocks.dtype) for blocks in kv)
    described = [leaf for weight in (*plan.weights, *plan.head) for leaf in _described(weight, target.platform, mesh)]
    slices = [leaf for weight in plan.weights if weight.stacked for leaf in _slices(weight, target.platform, mesh)]
    needed = kv_bytes + sum(array_bytes(shape, kind) for _, shape, kind in described)
    return Held((*_kept_groups(kv, layout), *kept_weights([*described, *slices])), kv_bytes, needed)


def _described(weight: Weight, platform: str, mesh: MeshConfig) -> Iterator[tuple[str, tuple[int, ...], jnp.dtype]]:
    """Name, shape and type of each array that a device holds of a weight."""
    name = ".".join(map(str, weight.path))
    parts = ("",) if weight.scheme is None else (f" ({part})" for part in weight.scheme.parts)
    for part, leaf in zip(parts, weight.leaves(four_bits(platform, mesh.size)), strict=True):
        yield f"{name}{part}", shard_shape(mesh, leaf.axes, leaf.shape), leaf.dtype


def _slices(weight: Weight, platform: str, mesh: MeshConfig) -> Iterator[tuple[str, tuple[int, ...], jnp.dtype]]:
    """A layer of each array that layers are stacked in."""
    for name, (_, *shape), kind in _described(weight, platform, mesh):
        yield f"{name} of a layer", tuple(shape), kind


def _blocks(
    group: LayerGroup, pool: KVGroup, block_size: int, layout: KVLayout, mesh: MeshConfig
) -> jax.ShapeDtypeStruct:
    """The KV blocks of a group on one device."""
    shape = layout.shape(
        layers=len(group.layers),
        pages=pool.num_blocks,
        page_size=block_size,
        kv_heads=group.kv.heads,
        key_dim=group.kv.key_dim,
        value_dim=group.kv.value_dim,
    )
    shape = shard_shape(mesh, layout.axes, shape)
    return jax.ShapeDtypeStruct(shape, DTYPE if group.kv.codes is None else jnp.dtype(group.kv.codes))


def _kept_groups(groups: Sequence[jax.ShapeDtypeStruct], layout: KVLayout) -> Iterator[Kept]:
    """The pages of every KV group, which have names where there are several."""
    for number, blocks in enumerate(groups):
        of_group = f" of group {number}" if len(groups) > 1 else ""
        for kept in kept_pages(blocks.shape, blocks.dtype, layout):
            yield kept._replace(name=f"{kept.name}{of_group}")


def _lower(programs: Any, mesh: MeshConfig, name: Name, devices: Sequence[Any]) -> Lowering:
    made = programs(tuple(devices[: mesh.size]))
    with jax.sharding.use_abstract_mesh(make_mesh(mesh, devices).abstract_mesh):
        return Lowering(made.lower(name), made.options)


def _programs(
    configs: Sequence[DecoderConfig],
    shapes: EngineShapes,
    mesh: MeshConfig,
    platform: str,
    backend: str,
    form: DispatchForm,
    devices: tuple[Any, ...],
) -> Programs:
    """configs: of the model, and of the one that drafts for it where there is one."""
    model, *drafts = (
        stand_in(config, DTYPE, mesh, devices, platform, shapes.block_size, backend, form) for config in configs
    )
    return Programs(with_draft(model, drafts[0]) if drafts else model, shapes)


def large_shapes(config: DecoderConfig, block_size: int) -> EngineShapes:
    """Return the shapes of large steps."""
    return EngineShapes(
        max_num_seqs=_ROWS,
        max_num_batched_tokens=_TOKENS,
        max_scored=_ROWS,
        max_model_len=_LENGTH,
        block_size=block_size,
        groups=tuple(
            KVGroup(group.window, _KV_BLOCKS if group.window is None else _WINDOW_BLOCKS) for group in config.kv_groups
        ),
        vocab_size=config.vocab_size,
        decode_steps=_DECODE_STEPS,
    )


def drafting_shapes(config: DecoderConfig, block_size: int) -> EngineShapes:
    """Return the shapes of large steps that draft. All rows' tokens have another size than any weight."""
    drafting = Speculation(tokens=4, shortest=2, longest=5)
    return replace(large_shapes(config, block_size), decode_steps=1, drafting=drafting, max_model_len=_LENGTH - 256)


def drafted_shapes(config: DecoderConfig, block_size: int) -> EngineShapes:
    """Return `drafting_shapes` with drafts of a model."""
    return replace(drafting_shapes(config, block_size), drafting=Speculation(tokens=4, method="draft_model"))


def fitting_shapes(config: DecoderConfig, block_size: int) -> EngineShapes:
    """Return the shapes that an engine has for these sequences.

    It would take 2048 tokens a step, of which activations are as large as a weight's codes.
    """
    blocks = 1 + FITTING_SEQUENCES * (FITTING_LENGTH // block_size)
    return EngineShapes(
        max_num_seqs=FITTING_SEQUENCES,
        max_num_batched_tokens=_TOKENS,
        max_scored=FITTING_SEQUENCES + 64,
        max_model_len=FITTING_LENGTH,
        block_size=block_size,
        groups=tuple(KVGroup(group.window, blocks) for group in config.kv_groups),
        vocab_size=config.vocab_size,
    )
