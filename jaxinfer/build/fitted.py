"""Fifth stage: KV blocks in the memory that weights leave."""

from dataclasses import dataclass
from pathlib import Path

from jaxinfer.build.asked import StartRequest
from jaxinfer.build.chosen import Chosen
from jaxinfer.build.placed import PlacedModel
from jaxinfer.config import EngineConfig
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.errors import ParameterError
from jaxinfer.hosts.team import ALONE, Team
from jaxinfer.runner.fit.fitting import fitting_blocks
from jaxinfer.runner.fit.memory import with_blocks
from jaxinfer.runner.fit.sizes import fit_context
from jaxinfer.runner.platform.xla_options import Options
from jaxinfer.runner.step.stage import StagedModel


@dataclass(frozen=True)
class Fitted:
    """shapes: with the numbers of blocks, and a context that they hold."""

    placed: PlacedModel
    model: StagedModel
    shapes: EngineShapes


def fit(asked: StartRequest, chosen: Chosen) -> Fitted:
    """Raises ParameterError if nothing is left for blocks."""
    placed, model = chosen.placed, chosen.model
    shapes = fitted_shapes(asked.config, model, placed.sized.shapes, placed.notes, placed.options, asked.team)
    return Fitted(placed, model, shapes)


def fitted_shapes(
    config: EngineConfig,
    model: StagedModel,
    shapes: EngineShapes,
    cache: Path | None,
    options: Options,
    team: Team = ALONE,
) -> EngineShapes:
    """Return the shapes with as many blocks as are asked for or fit, on all hosts of a team."""
    if config.cache.num_blocks is not None:
        blocks = [_share_of_blocks(config.cache.num_blocks, shapes.shards)] * len(shapes.groups)
    else:
        blocks = fitting_blocks(model, shapes, config.cache.gpu_memory_utilization, cache, options)
    return fit_context(config, with_blocks(shapes, team.agree("loaded", {"sizes": repr(shapes)}, blocks)))


def _share_of_blocks(num_blocks: int, shards: int) -> int:
    if num_blocks < 2 * shards:  # the setting itself is 2 at least
        least = f"{num_blocks} must be at least {2 * shards}"
        raise ParameterError(
            "num_blocks", f"{least}: it is shared out among {shards} shards, and each has a scratch block"
        )
    return num_blocks // shards
