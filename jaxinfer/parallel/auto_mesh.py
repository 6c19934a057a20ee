"""choose_mesh: the mesh of `--mesh auto`, from what a model takes of a device. Imports no jax."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from jaxinfer.errors import ParameterError
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.rules import DEFAULT_RULES

_ROOMY = 0.6
"""The share of a device's memory that weights may take: the rest is for KV blocks and what steps need."""
_WHOLE_EXPERTS = DEFAULT_RULES.with_whole_experts()


class Taken(NamedTuple):
    """Bytes of one device: weights, and keys and values of one sequence as long as the context."""

    weights: int
    context: int


class MeshChoice(NamedTuple):
    """reason: why it is this mesh, for people."""

    mesh: MeshConfig
    reason: str


def choose_mesh(devices: int, memory: int, taken_of: Callable[[MeshConfig], Taken]) -> MeshChoice:
    """The fewest devices over which weights leave room for KV blocks, and as many groups of them as there are (`data`).

    memory: bytes of a device. taken_of: raises ParameterError where the model cannot be split so. Raises ParameterError
    where no mesh holds the model.
    """
    fits: MeshChoice | None = None
    refused = ""
    for tensor in (size for size in range(1, devices + 1) if devices % size == 0):
        try:
            mesh, taken = _split(tensor, taken_of)
        except ParameterError as error:
            refused = f"; over {tensor}: {error.message}"
            continue
        if taken.weights + taken.context > memory:
            refused = f"; over {tensor} a device holds {_gib(sum(taken))} of weights and of one sequence"
            continue
        fits = _choice(mesh, devices, memory, taken)
        if taken.weights <= _ROOMY * memory:
            return fits
    if fits is None:
        message = f"auto: {devices} devices of {_gib(memory)} do not hold the model{refused}"
        raise ParameterError("mesh", message)
    return fits


def _split(tensor: int, taken_of: Callable[[MeshConfig], Taken]) -> tuple[MeshConfig, Taken]:
    """Split over `tensor` devices: the channels of every expert if they divide, else whole experts."""
    first: ParameterError | None = None
    for mesh in _meshes(tensor):
        try:
            return mesh, taken_of(mesh)
        except ParameterError as error:
            first = first or error
    assert first is not None
    raise first


def _meshes(tensor: int) -> Iterator[MeshConfig]:
    for rules in (DEFAULT_RULES, _WHOLE_EXPERTS):
        yield MeshConfig({"tensor": tensor}, rules)


def _choice(mesh: MeshConfig, devices: int, memory: int, taken: Taken) -> MeshChoice:
    groups = devices // mesh.size
    whole = replace(mesh, axes={**mesh.axes, "data": groups})
    experts = ", whole experts on each" if mesh.rules == _WHOLE_EXPERTS else ""
    told = f"weights take {_gib(taken.weights)} of {_gib(memory)} of a device{experts}"
    apart = "" if groups == 1 else f"; {groups} groups of {mesh.size} attend for different requests"
    return MeshChoice(whole, f"{whole}: {told}{apart}")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
