"""KV blocks and costs of a model in stages: those of the whole follow from each stage's."""

import logging
from functools import partial
from pathlib import Path

from jaxinfer.engine.stats.step_cost import StepCosts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.errors import ParameterError
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.fit import memory
from jaxinfer.runner.fit.costs import step_costs
from jaxinfer.runner.fit.cpu_memory import cpu_blocks, machine_memory
from jaxinfer.runner.platform.values import usable_memory
from jaxinfer.runner.platform.xla_options import Options
from jaxinfer.runner.programs.compiled import Programs
from jaxinfer.runner.programs.table import ProgramTable
from jaxinfer.runner.step.stage import Stage, StagedModel, by_group

log = logging.getLogger(__name__)


def fitting_blocks(
    model: StagedModel, shapes: EngineShapes, utilization: float, cache: Path | None, options: Options
) -> list[int]:
    """Blocks a group: each is in every stage that has some of the group's layers, so the fullest stage decides. Raises
    ParameterError where not even one fits."""
    if usable_memory(utilization, model.parts[0].mesh) is None:
        return _cpu_blocks(model, shapes, machine_memory())
    found: list[list[int]] = []
    for part, stage in zip(model.parts, model.stages, strict=True):
        limit = usable_memory(utilization, part.mesh)
        assert limit is not None
        own, make = stage.shapes(shapes), None if stage.count == 1 else partial(_programs, part, stage, shapes, options)
        found.append(memory.device_blocks(part, own, limit=limit, cache=cache, options=options, make=make))
    return [min(counts) for counts in by_group(model.stages, found)]


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
    every = zip(model.parts, model.stages, strict=True)
    costs = [
        [cost * part.mesh.size for cost in memory.block_costs(part, stage.shapes(shapes))] for part, stage in every
    ]
    return [sum(of_stages) for of_stages in by_group(model.stages, costs)]


def _programs(model: LoadedModel, stage: Stage, whole: EngineShapes, options: Options, own: EngineShapes) -> Programs:
    """own: the stage's sizes, of which only numbers of blocks differ from those of `whole`."""
    groups = list(whole.groups)
    for group, kept in zip(stage.groups, own.groups, strict=True):
        groups[group] = kept
    shapes = memory.with_blocks(whole, [group.num_blocks for group in groups])
    return Programs(model, own, options, table=ProgramTable(model, shapes, stage))


def costs_of_stages(model: StagedModel) -> StepCosts:
    """Return the costs of the steps of all stages together."""
    each, stages = [step_costs(part) for part in model.parts], model.stages
    return StepCosts(
        weight_bytes=sum(costs.weight_bytes for costs in each),
        token_flops=sum(costs.token_flops for costs in each),
        scored_flops=sum(costs.scored_flops for costs in each),
        kv_bytes=tuple(map(sum, by_group(stages, [costs.kv_bytes for costs in each]))),
        pair_flops=tuple(map(sum, by_group(stages, [costs.pair_flops for costs in each]))),
        experts=tuple(experts for costs in each for experts in costs.experts),
    )
