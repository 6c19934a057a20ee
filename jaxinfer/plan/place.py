"""Choice of the chips for a mesh whose file names none. Imports no jax."""

import itertools
import math

from jaxinfer.errors import ParameterError
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.topology import TARGETS, Topology
from jaxinfer.plan.chip import Chip


def topology_of(mesh: MeshConfig, chip: Chip) -> Topology:
    """The mesh's own, or the smallest slice of this chip that has as many devices. Raises ParameterError `mesh` where
    it is made for another chip, or where there is no such slice."""
    if mesh.topology is not None:
        if mesh.topology.target != chip.name:
            raise ParameterError("mesh", f"is made for {mesh.topology}, not for {chip.name}")
        return mesh.topology
    if chip.platform == "cpu":
        return Topology(chip.name, (mesh.size,))
    chips = -(-mesh.size // chip.devices)
    if chip.platform == "gpu":
        of_host = TARGETS[chip.name].most_chips
        return Topology(chip.name, (1, -(-chips // of_host), min(chips, of_host)))
    for shape in _slices(chip.name):
        if math.prod(shape) >= chips:
            return Topology(chip.name, shape)
    raise ParameterError("mesh", f"{mesh} needs {chips} chips; there is no such slice of {chip.name}")


def _slices(name: str) -> list[tuple[int, ...]]:
    """From the smallest up, and of equal ones the most nearly square first."""
    shapes = TARGETS[name].shapes or _cuboids()
    return sorted(shapes, key=lambda shape: (math.prod(shape), max(shape)))


def _cuboids() -> list[tuple[int, ...]]:
    """Return the shapes of slices of hosts of 2x2x1 chips: one host, then cuboids with sides that double."""
    sides = [2, 4, 8, 16]
    found = [(x, y, z) for x, y, z in itertools.product(sides, sides, [1, *sides]) if x <= y and (z > 1 or y == 2)]
    return [(2, 2, 1), *(shape for shape in found if shape != (2, 2, 1))]
