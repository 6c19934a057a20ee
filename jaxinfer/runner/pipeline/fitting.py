"""KV blocks and costs of a model in stages: those of the whole follow from each stage's."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jaxinfer.engine.stats.step_cost import StepCosts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.errors import ParameterError
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner import memory
from jaxinfer.runner.costs import step_costs
from jaxinfer.runner.cpu_memory import cpu_blocks, machine_memory
from jaxinfer.runner.pipeline.stage import Stage, StagedModel
from jaxinfer.runner.platform import usable_memory
from jaxinfer.runner.program_table import ProgramTable
from jaxinfer.runner.programs import Programs
from jaxinfer.runner.xla_options import Options

log = logging.getLogger(__name__)


def fitting_blocks(
    model: StagedModel, shapes: EngineShapes, utilization: float, cache: Path | None, options: Options
) -> list[int]:
    """Blocks a group: each is in every stage that has some of the group's layers, so the fullest stage decides. Raises
    ParameterError where not even one fits."""
    if usable_memory(utilization, model.parts[0].mesh) is None:
        return _cpu_blocks(model, shapes, machine_memory())
    found: list[list[int]] = [[] for _ in shapes.groups]
    for part, stage in zip(model.parts, model.stages, strict=True):
        limit = usable_memory(utilization, part.mesh)
        assert limit is not None
        own, make = stage.shapes(shapes), None if stage.count == 1 else partial(_programs, part, stage, shapes, options)
        blocks = memory.device_blocks(part, own, limit=limit, cache=cache, options=options, make=make)
        for group, count in zip(stage.groups, blocks, strict=True):
            found[group].append(count)
    return [min(counts) for counts in found]


def _cpu_blocks(model: StagedModel, shapes: EngineShapes, total: int) -> list[int]:
    """total: bytes of the machine."""
    weights = sum(memory.weight_bytes(part) * part.mesh.size for part in model.parts)
    costs = _costs_of_all(model, shapes)
    blocks, reason = cpu_blocks(costs, shapes, total, weights)
    if min(blocks) < 2:
        message = f"weights take {_mib(weights)} of the machine's {_mib(total)}, which leaves no room; give a number"
        raise ParameterError("num_blocks", message)
    taken = sum(cost * count for cost, count in zip(costs, blocks, strict=True))
    log.info("KV blocks take %s of the machine's %s: %s", _mib(taken), _mib(total), reason)
    return blocks


def _mib(size: int) -> str:
    return f"{size >> 20:,} MiB"


def _costs_of_all(model: StagedModel, shapes: EngineShapes) -> list[int]:
    """Bytes of a block of each group on all devices together."""
    costs = [0] * len(shapes.groups)
    for part, stage in zip(model.parts, model.stages, strict=True):
        each = memory.block_costs(part, stage.shapes(shapes))
        for group, cost in zip(stage.groups, each, strict=True):
            costs[group] += cost * part.mesh.size
    return costs


def _programs(model: LoadedModel, stage: Stage, whole: EngineShapes, options: Options, own: EngineShapes) -> Programs:
    """own: the stage's sizes, of which only numbers of blocks differ from those of `whole`."""
    groups = list(whole.groups)
    for group, kept in zip(stage.groups, own.groups, strict=True):
        groups[group] = kept
    shapes = memory.with_blocks(whole, [group.num_blocks for group in groups])
    return Programs(model, own, options, table=ProgramTable(model, shapes, stage))


def costs_of_stages(model: StagedModel) -> StepCosts:
    """Return the costs of the steps of all stages together."""
    each, groups = [step_costs(part) for part in model.parts], [stage.groups for stage in model.stages]
    count = len(model.config.kv_groups)
    return StepCosts(
        weight_bytes=sum(costs.weight_bytes for costs in each),
        token_flops=sum(costs.token_flops for costs in each),
        scored_flops=sum(costs.scored_flops for costs in each),
        kv_bytes=_by_group(count, groups, [costs.kv_bytes for costs in each]),
        pair_flops=_by_group(count, groups, [costs.pair_flops for costs in each]),
        experts=tuple(experts for costs in each for experts in costs.experts),
    )


def _by_group(count: int, groups: Sequence[Sequence[int]], each: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Sums of what stages have of each of `count` groups. groups: which of them are a stage's."""
    found = [0] * count
    for own, values in zip(groups, each, strict=True):
        for group, value in zip(own, values, strict=True):
            found[group] += value
    return tuple(found)
