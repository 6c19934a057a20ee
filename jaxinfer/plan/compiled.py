"""Compiled: what a compiler says of one program of a mesh, and the request that a process compiles. Imports no jax."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.topology import Topology

ProgramName = tuple[str, int]
"""Name of a program, as `jaxinfer.runner.programs.table.Name`."""

MARK = "compiled: "
"""Beginning of those lines of the compiling process that are meant for the process that started it."""


class Request(NamedTuple):
    """Programs of one mesh. decoder: over the mesh's parts. target: a file of configs/targets, with its folder."""

    decoder: DecoderConfig
    dtype: str
    mesh: MeshConfig
    topology: Topology
    folder: str
    shapes: EngineShapes
    names: tuple[ProgramName, ...]


class Collective(NamedTuple):
    """array: type and shape of what a device gets, as `bf16[16,4096]`; bytes: of it. count: how often it is there."""

    kind: str
    array: str
    bytes: int
    count: int


class Compiled(NamedTuple):
    """Bytes of one device. argument: of all arguments, and alias: of those that results take the place of. temporary:
    beside arguments and results. seconds: of tracing and compiling. peak: bytes of the process that compiled it, and
    what it compiled before."""

    program: str
    seconds: float
    peak: int
    argument: int
    alias: int
    output: int
    temporary: int
    collectives: tuple[Collective, ...]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Compiled":
        """From JSON."""
        return cls(**{**values, "collectives": tuple(Collective(*one) for one in values["collectives"])})


def label(name: ProgramName) -> str:
    """`decode 32`; of admit, which has one size, just that."""
    return f"{name[0]} {name[1]}".removesuffix(" 0")
