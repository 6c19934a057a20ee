"""The mesh that an engine's settings ask for: a file, flags, or both where they agree."""

from dataclasses import replace

from jaxinfer.config import ParallelConfig
from jaxinfer.errors import ParameterError
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.mesh_file import LOGICAL_AXES, read_mesh
from jaxinfer.parallel.rules import DEFAULT_RULES

_SIZES = {"tensor_parallel_size": "tensor", "attention_data_parallel": "data", "pipeline_parallel_size": "stage"}
"""Settings that are sizes of an axis."""


AUTO = "auto"
"""Name that stands for a mesh that the engine chooses for its devices (auto_mesh.py)."""


def asked_mesh(asked: ParallelConfig) -> MeshConfig:
    """Raises ParameterError for a file that is wrong, and for a flag that contradicts it."""
    if asked.mesh == AUTO:
        raise ParameterError("mesh", "auto is chosen by an engine, for the devices that it has; name a mesh or a file")
    mesh = ONE_DEVICE if asked.mesh is None else read_mesh(asked.mesh)
    sizes = {flag: size for flag in _SIZES if (size := getattr(asked, flag)) is not None}
    if asked.mesh is None:
        mesh = replace(mesh, axes={_SIZES[flag]: size for flag, size in sizes.items()})
    for flag, size in sizes.items():
        found = mesh.axes.get(_SIZES[flag], 1)
        if found != size:
            message = f"{size} contradicts mesh {asked.mesh}, which has {_SIZES[flag]}={found}; give one of the two"
            raise ParameterError(flag, message)
    if asked.pipeline_layers is not None and mesh.stages == 1:
        needed = "give one that has, as pp2 (mesh, or pipeline_parallel_size)"
        raise ParameterError("pipeline_layers", f"{asked.pipeline_layers}: the mesh ({mesh}) has no stages; {needed}")
    mesh = _with_whole_experts(mesh, asked.mesh) if asked.enable_expert_parallel else mesh
    return _with_copies(mesh, asked.redundant_experts) if asked.redundant_experts else mesh


def served_mesh(asked: ParallelConfig, num_hosts: int = 1) -> MeshConfig | None:
    """The mesh asked for; None: the engine chooses. Raises ParameterError where engines do not run on such a one, over
    so many hosts."""
    if asked.mesh == AUTO:
        if num_hosts > 1:
            raise ParameterError("mesh", f"auto is of one host; name a mesh of {num_hosts}")
        return _check_alone(asked)
    mesh = asked_mesh(asked)
    check_served(mesh, num_hosts)
    return mesh


def check_served(mesh: MeshConfig, num_hosts: int = 1) -> None:
    """Raises ParameterError where engines do not run on such a mesh, over so many hosts."""
    if mesh.topology is not None and mesh.hosts != num_hosts:
        message = f"{mesh.topology} is {mesh.hosts} hosts, and this engine has {num_hosts} (coordinator, num_hosts)"
        raise ParameterError("mesh", message)
    if mesh.size % num_hosts:
        devices = "1 device" if mesh.size == 1 else f"{mesh.size} devices"
        message = f"{mesh}: {devices} cannot be shared out among {num_hosts} hosts; give a mesh over all of them"
        raise ParameterError("mesh", message)
    for axis in LOGICAL_AXES:
        split = mesh.rules.split(axis) or ()
        if "data" in split:
            raise ParameterError("mesh", f"rules.{axis}: data splits requests; weights over it are not supported yet")
        if "stage" in split:
            raise ParameterError("mesh", f"rules.{axis}: stage splits layers, whole ones; other axes are allowed")
    for axis in ("layers", "head_dim"):  # attention in shard_map has every layer's pages, and whole heads
        if split := mesh.rules.split(axis):
            raise ParameterError("mesh", f"rules.{axis}: {', '.join(split)} would split KV blocks; null is allowed")


def _check_alone(asked: ParallelConfig) -> None:
    for flag in (*_SIZES, "pipeline_layers", "enable_expert_parallel", "redundant_experts"):
        if getattr(asked, flag):
            raise ParameterError(flag, "contradicts mesh auto, which chooses it; give one of the two")


def _with_copies(mesh: MeshConfig, redundant: int) -> MeshConfig:
    if mesh.shards("expert") == 1:
        message = f"{redundant}: no axis of the mesh ({mesh}) splits experts; 0 is allowed, or enable_expert_parallel"
        raise ParameterError("redundant_experts", message)
    return replace(mesh, redundant_experts=redundant)


def _with_whole_experts(mesh: MeshConfig, name: str | None) -> MeshConfig:
    """Each device along `expert` and `tensor` has experts of its own, and all channels of those."""
    rules = mesh.rules
    if "tensor" in rules.expert:
        return mesh
    if (rules.expert, rules.expert_mlp) != (DEFAULT_RULES.expert, DEFAULT_RULES.expert_mlp):
        message = f"contradicts the rules of mesh {name} for expert and expert_mlp; give one of the two"
        raise ParameterError("enable_expert_parallel", message)
    return replace(mesh, rules=rules.with_whole_experts())
