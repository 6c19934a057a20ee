"""Programs of the stages of a pipeline, each on devices of its own, and what one hands to the next."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxinfer_kernels.check.cases import Case, Lowering
from jaxinfer_kernels.check.collectives import Exchange
from jaxinfer_kernels.check.targets import Target
from program_cases import BLOCK_SIZE, DTYPE, WITH_KV, held_arrays, large_shapes
from program_models import Model

from jaxinfer.build.sized import Sized
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.parallel.mesh import platform_kind
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.rules import AXES
from jaxinfer.plan.stand_in import attends, stand_in
from jaxinfer.runner.fit.layer_spans import layer_spans
from jaxinfer.runner.programs.compiled import Programs
from jaxinfer.runner.programs.table import Name, ProgramTable
from jaxinfer.runner.step.forward import Forward
from jaxinfer.runner.step.stage import Stage


def stage_cases(
    target: Target,
    model: Model,
    layers: int | None,
    backend: str,
    names: Sequence[Name],
    *,
    mesh: MeshConfig,
    mesh_name: str,
    exchange: Callable[[DecoderConfig, Name], Exchange],
) -> list[Case]:
    """Return the programs of every stage of a mesh that are in `names`. Arguments are those of `model_cases`."""
    whole, platform = model.config(layers).over(*mesh.parts), platform_kind(target.platform)
    block_size = BLOCK_SIZE[target.platform]
    shapes = replace(large_shapes(whole, block_size), shards=mesh.data, stages=mesh.stages, decode_steps=1)
    sized = Sized(whole, DTYPE, platform, mesh, shapes, layer_spans(None, whole, DTYPE, platform, mesh))
    found = []
    for part, stage in zip(sized.parts, sized.stages, strict=True):
        held = held_arrays(part, stage.shapes(shapes), mesh.of_stage, target)
        attending = [attends(part, group, backend, block_size, DTYPE) for group in part.kv_groups]
        run_by = " and ".join(dict.fromkeys((backend, *attending)))
        programs = cache(partial(_programs, part, shapes, stage, mesh, platform, backend))
        found += [
            Case(
                f"{name[0]} {name[1]}",
                f"{model.title}, {_of_layers(part)}, {mesh_name} stage {stage.number}, {run_by}",
                partial(_lower, programs, stage, shapes, part, name),
                held.kept,
                held.kv_bytes if name[0] in WITH_KV else 0,
                held.too_many(target),
                exchange=exchange(part, name),
            )
            for name in names
            if name[0] in ("decode", "mixed") or (name[0] == "sample" and stage.is_last)
        ]
    return found


def _of_layers(part: DecoderConfig) -> str:
    """Name the layers of a stage for the table."""
    assert part.span is not None
    first, last = part.span.first, part.span.first + part.num_layers - 1
    return f"layer {first}" if first == last else f"layers {first}-{last}"


def _programs(
    part: DecoderConfig,
    shapes: EngineShapes,
    stage: Stage,
    mesh: MeshConfig,
    platform: str,
    backend: str,
    devices: tuple[Any, ...],
) -> tuple[Programs, Mesh]:
    """Return a stage's programs and the mesh of its devices. shapes: of the engine. devices: of a host, of which the
    stage has its own."""
    of_mesh = np.array(devices[: mesh.size]).reshape(mesh.shape)
    own = list(of_mesh.take(stage.number, axis=AXES.index("stage")).flat)
    model = stand_in(part, DTYPE, mesh.of_stage, own, platform, shapes.block_size, backend)
    return Programs(model, stage.shapes(shapes), table=ProgramTable(model, shapes, stage)), model.mesh


def _lower(
    programs: Callable[[tuple[Any, ...]], tuple[Programs, Mesh]],
    stage: Stage,
    shapes: EngineShapes,
    part: DecoderConfig,
    name: Name,
    devices: Sequence[Any],
) -> Lowering:
    made, mesh = programs(tuple(devices))
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        lowered = made.lower(name)
    if name[0] != "sample":
        check_handed(lowered.out_info, stage, (name[1] * shapes.shards, part.hidden_size))
    return Lowering(lowered, made.options)


def check_handed(out: Forward, stage: Stage, shape: tuple[int, int]) -> None:
    """Raises ValueError where a stage that is not the last gives the next anything but hidden states of this shape: a
    row each of the step's tokens. Its KV blocks, block tables and load of experts stay on its devices."""
    if stage.is_last:
        return
    found = [(each.shape, each.dtype) for each in jax.tree.leaves((out.hidden, out.scored))]
    if found != [(shape, DTYPE)]:
        told = ", ".join(f"{dtype}{list(each)}" for each, dtype in found)
        raise ValueError(f"hands over {told}; {DTYPE}{list(shape)} is expected")
