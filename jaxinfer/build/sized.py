"""Second stage: a model's parts and an engine's sizes on devices that need not be here."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import jax.numpy as jnp

from jaxinfer.config import EngineConfig
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.layers.stack import Layout
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.parallel.layer_split import Spans
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.runner.fit.layer_spans import layer_spans
from jaxinfer.runner.fit.sizes import Device, plan_shapes
from jaxinfer.runner.step.stage import Stage, stages_of
from jaxinfer.runner.tuning.layer_layout import layer_layout

LayersInLoop = Literal["auto", "on", "off"]
"""Setting of `--scan-layers`."""


@dataclass(frozen=True)
class Sized:
    """A model over a mesh. decoder: over the mesh's parts. spans: the layers of each stage. shapes: sizes of a shard,
    without numbers of blocks."""

    decoder: DecoderConfig
    dtype: jnp.dtype
    platform: str
    mesh: MeshConfig
    shapes: EngineShapes
    spans: Spans

    @cached_property
    def parts(self) -> tuple[DecoderConfig, ...]:
        """The decoder of each stage; of one stage the whole."""
        return tuple(self.decoder.stage(*span) for span in self.spans)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Each stage's number and KV groups."""
        return stages_of(self.decoder, self.parts)

    def layout(self, asked: LayersInLoop) -> Layout:
        """Return the layout of layers on the devices of a stage, as `--scan-layers` asks."""
        return layer_layout(asked, self.platform, self.mesh.of_stage)


def size(config: EngineConfig, decoder: DecoderConfig, mesh: MeshConfig, device: Device, dtype: jnp.dtype) -> Sized:
    """decoder: over the mesh's parts. Raises ParameterError for sizes and layers of stages that cannot be."""
    shapes = plan_shapes(config, decoder, device, mesh.data, mesh.stages)
    asked = config.parallel.pipeline_layers if mesh.stages > 1 else None
    spans = layer_spans(asked, decoder, dtype, device.platform, mesh)
    return Sized(decoder, dtype, device.platform, mesh, shapes, spans)
