"""Third stage: weights on their devices."""

from dataclasses import dataclass

from jaxinfer.build.asked import StartRequest
from jaxinfer.build.placed import PlacedModel
from jaxinfer.errors import ParameterError
from jaxinfer.models.loaded import LoadedModel, load_stages
from jaxinfer.runner.fit.kv_measure import needs_measuring, with_scales_of_stages
from jaxinfer.runner.step.stage import stage_meshes


@dataclass(frozen=True)
class Loaded:
    """parts: of each stage. draft: what drafts, if anything with weights does."""

    placed: PlacedModel
    parts: tuple[LoadedModel, ...]
    draft: LoadedModel | None


def load(asked: StartRequest, placed: PlacedModel) -> Loaded:
    """Read the weights, and measure scales of keys and values that a checkpoint lacks. Raises ModelError."""
    sized, scan = placed.sized, asked.config.runner.scan_layers
    parts = load_stages(
        placed.declared.source,
        sized.decoder,
        sized.spans,
        dtype=sized.dtype,
        meshes=stage_meshes(placed.mesh),
        rules=sized.mesh.rules,
        layout=sized.layout(scan),
        progress=asked.progress.loaded if asked.progress else None,
    )
    draft = placed.drafts.load(sized, placed.mesh, scan)
    if needs_measuring(parts[0]):
        if asked.team.num_hosts > 1:
            message = "int8: scales are not measured over several hosts; fp8 is allowed, or a checkpoint that has them"
            raise ParameterError("kv_cache_dtype", message)
        parts = with_scales_of_stages(parts, placed.measured)
    return Loaded(placed, parts, draft)
