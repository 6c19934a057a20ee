"""Choice of an engine's layer layout: unrolled layers, or a loop over stacked matrices."""

from typing import Literal

from jaxinfer.layers.stack import Layout
from jaxinfer.parallel.mesh_config import MeshConfig

_INNER_AXES = ("q_per_kv", "head_dim")
"""Split over devices they would not lie in one piece in a stack of matrices."""


def layer_layout(asked: Literal["auto", "on", "off"], platform: str, mesh: MeshConfig) -> Layout:
    """The layout of `--scan-layers`.

    What eight devices cost at dispatch is mostly one hold of each buffer of each device, and stacked layers have few
    (benchmarks/README.md, "Steps for several devices"). XLA for a TPU, and our kernels there, read a layer's matrices
    where they lie in the stack, as native kernels do on a CPU, where a loop compiles in a tenth of the time; XLA for a
    GPU copies each (`scripts/check_programs.py` compiles both).
    """
    if asked != "auto":
        return "stacked" if asked == "on" else "unrolled"
    inner = any(mesh.shards(axis) > 1 for axis in _INNER_AXES)
    if platform == "cpu":
        return "unrolled" if inner else "stacked"
    if platform != "tpu" or mesh.size == 1 or inner:
        return "unrolled"
    return "stacked"
