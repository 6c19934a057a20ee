"""Whether an engine's layers are unrolled, or run as a loop over matrices that are stacked."""

from typing import Literal

from jaxinfer.layers.stack import Layout
from jaxinfer.models.plan import ModelPlan
from jaxinfer.parallel.mesh_config import MeshConfig

_INNER_AXES = ("q_per_kv", "head_dim")
"""Split over devices they would not lie in one piece in a stack of matrices."""


def layer_layout(asked: Literal["auto", "on", "off"], plan: ModelPlan, platform: str, mesh: MeshConfig) -> Layout:
    """The layout of `--scan-layers`. plan: of the model in either layout.

    What eight devices cost at dispatch is mostly one hold of each buffer of each device, and stacked layers have few
    (benchmarks/README.md, "Steps for several devices"). XLA for a TPU, and our kernels there, read a layer's matrices
    where they lie in the stack; XLA for a GPU copies each (`scripts/check_programs.py` compiles both).
    """
    if asked != "auto":
        return "stacked" if asked == "on" else "unrolled"
    inner = any(mesh.shards(axis) > 1 for axis in _INNER_AXES)
    return "stacked" if platform == "tpu" and mesh.size > 1 and not inner else "unrolled"
