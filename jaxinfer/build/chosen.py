"""Fourth stage: the kernels that attend and multiply, the fastest that give the right numbers."""

from dataclasses import dataclass

from jaxinfer.build.asked import StartRequest
from jaxinfer.build.drafting import beside
from jaxinfer.build.loaded import Loaded
from jaxinfer.build.placed import PlacedModel
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.step.stage import StagedModel
from jaxinfer.runner.tuning.attention import choose_attention
from jaxinfer.runner.tuning.experts import choose_dispatch, choose_experts
from jaxinfer.runner.tuning.products import choose_products


@dataclass(frozen=True)
class Chosen:
    """model: with its backends, and with what drafts for it."""

    placed: PlacedModel
    model: StagedModel


def choose(asked: StartRequest, loaded: Loaded) -> Chosen:
    """Time kernels, or read from the cache which were faster."""
    placed, shapes = loaded.placed, loaded.placed.sized.shapes

    def with_backends(model: LoadedModel, shapes: EngineShapes) -> LoadedModel:
        model = choose_attention(model, shapes, placed.backend, placed.notes)
        if asked.team.num_hosts > 1:
            return model
        model = choose_experts(model, shapes, placed.backend, placed.notes)
        model = choose_dispatch(model, shapes, placed.notes)
        return choose_products(model, shapes, placed.backend, placed.notes)

    model = StagedModel(loaded.parts).map(lambda part, stage: with_backends(part, stage.shapes(shapes)))
    return Chosen(placed, beside(model, loaded.draft, shapes, with_backends))
