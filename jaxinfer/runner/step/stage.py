"""Stages of a pipeline: which each is, and what of an engine's sizes and devices is its own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from jax.sharding import Mesh

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.parallel.rules import AXES

Value = TypeVar("Value")
_AXIS = AXES.index("stage")


class Stage(NamedTuple):
    """number: of `count`, from 0. groups: the engine's KV groups that its layers have, in the order of its model's."""

    number: int
    count: int
    groups: tuple[int, ...]

    @property
    def is_first(self) -> bool:
        """It reads tokens."""
        return self.number == 0

    @property
    def is_last(self) -> bool:
        """It draws tokens."""
        return self.number == self.count - 1

    def shapes(self, whole: EngineShapes) -> EngineShapes:
        """The engine's sizes with the stage's KV groups alone."""
        return replace(whole, groups=tuple(whole.groups[group] for group in self.groups))


def whole_stage(shapes: EngineShapes) -> Stage:
    """Return the one stage of an engine whose model is in one part."""
    return Stage(0, 1, tuple(range(len(shapes.groups))))


class StagedModel(NamedTuple):
    """A model in parts, each with some of the layers on devices of its own; or as one, which has them all."""

    parts: tuple[LoadedModel, ...]

    @property
    def config(self) -> DecoderConfig:
        """Config of the whole decoder: the layers of all parts."""
        layers = tuple(layer for part in self.parts for layer in part.config.layers)
        return replace(self.parts[0].config, layers=layers, span=None)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Each part's number and KV groups in the pipeline."""
        return stages_of(self.config, [part.config for part in self.parts])

    @property
    def processes(self) -> set[int]:
        """The processes whose devices the parts are on."""
        return {device.process_index for part in self.parts for device in part.mesh.devices.flat}

    def map(self, change: Callable[[LoadedModel, Stage], LoadedModel]) -> "StagedModel":
        """Each part changed."""
        return StagedModel(tuple(map(change, self.parts, self.stages)))


def stages_of(whole: DecoderConfig, parts: Sequence[DecoderConfig]) -> tuple[Stage, ...]:
    """Return each part's number, and the KV groups of the whole that it has."""
    places = {group.kv: number for number, group in enumerate(whole.kv_groups)}
    groups = [tuple(places[group.kv] for group in part.kv_groups) for part in parts]
    return tuple(Stage(number, len(parts), own) for number, own in enumerate(groups))


def by_group(stages: Sequence[Stage], each: Sequence[Sequence[Value]]) -> list[list[Value]]:
    """Return what the stages have of each KV group of the whole. each: a stage's values, in the order of its groups."""
    found: dict[int, list[Value]] = {}
    for stage, values in zip(stages, each, strict=True):
        for group, value in zip(stage.groups, values, strict=True):
            found.setdefault(group, []).append(value)
    return [found[group] for group in sorted(found)]


def stage_meshes(mesh: Mesh) -> tuple[Mesh, ...]:
    """The devices of each stage, along all axes of a mesh; along `stage` there is one."""
    each = (mesh.devices.take([number], axis=_AXIS) for number in range(mesh.devices.shape[_AXIS]))
    return tuple(Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types) for devices in each)
