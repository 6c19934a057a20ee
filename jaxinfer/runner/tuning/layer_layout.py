"""Choice of an engine's layer layout: unrolled layers, or a loop over stacked matrices."""

from typing import Literal

from jaxinfer.layers.param import lead_axes
from jaxinfer.layers.stack import Layout
from jaxinfer.models.plan import ModelPlan
from jaxinfer.models.weight import Weight
from jaxinfer.parallel.mesh import shard_shape
from jaxinfer.parallel.mesh_config import MeshConfig

_LANES = 128
_INNER_AXES = ("q_per_kv", "head_dim")
"""Split over devices they would not lie in one piece in a stack of matrices."""


def layer_layout(asked: Literal["auto", "on", "off"], plan: ModelPlan, platform: str, mesh: MeshConfig) -> Layout:
    """The layout of `--scan-layers`. plan: of the model in either layout.

    What eight devices cost at dispatch is mostly one hold of each buffer of each device, and stacked layers have few
    (benchmarks/README.md, "Steps for several devices"). XLA for a TPU, and our kernels there, read a layer's matrices
    where they lie in the stack, as native kernels do on a CPU, where a loop compiles in a tenth of the time; XLA for a
    GPU copies each (`scripts/check_programs.py` compiles both). Not so scales
    that XLA lays out anew for a kernel: of a stack it would do that for all layers at once, in every step.
    """
    if asked != "auto":
        return "stacked" if asked == "on" else "unrolled"
    inner = any(mesh.shards(axis) > 1 for axis in _INNER_AXES)
    if platform == "cpu":
        return "unrolled" if inner else "stacked"
    if platform != "tpu" or mesh.size == 1 or inner or any(_laid_anew(one, mesh) for one in plan.weights):
        return "unrolled"
    return "stacked"


def _laid_anew(weight: Weight, mesh: MeshConfig) -> bool:
    """True where rows of scales have several axes, which are made one on the way to a kernel, and fill no lanes."""
    if weight.scheme is None or weight.scheme.group is None or not weight.layers:
        return False
    axes = weight.shape[lead_axes(weight.axes) :]
    groups = shard_shape(mesh, weight.axes, weight.shape)[-1] // weight.scheme.group
    return len(axes) > 2 and groups % _LANES > 0
