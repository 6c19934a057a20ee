"""Choice of the drafter, by the model and its settings."""

from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.eagle3 import Eagle3Model
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.drafting.drafter import Drafter, ModelDrafter, NgramDrafter
from jaxinfer.runner.drafting.eagle3_drafter import Eagle3Drafter


def make_drafter(model: LoadedModel, shapes: EngineShapes, layouts: Layouts) -> Drafter | None:
    """None where nothing is drafted."""
    if shapes.drafting is None:
        return None
    if model.draft is None:
        return NgramDrafter(shapes)
    if isinstance(model.draft, Eagle3Model):
        return Eagle3Drafter(model, model.draft, shapes, layouts)
    return ModelDrafter(model, shapes, layouts)
