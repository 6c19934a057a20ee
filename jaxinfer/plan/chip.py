"""Chip: figures of a kind of chip, from configs/chips. Imports no jax."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from jaxinfer.errors import ParameterError, quoted

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "chips", _PACKAGE.parent / "configs" / "chips")
"""Folders of an installed package (pyproject.toml puts the files there), and of a checkout."""


class ChipMemory(NamedTuple):
    """Memory of all devices of a chip together. bytes_per_second: rate at which it can be read."""

    bytes: int
    bytes_per_second: float
    source: str


class Links(NamedTuple):
    """Between the chips of a slice or of a host. shape: `torus`, each chip linked to its neighbours; `switch`, each to
    every other at the rate of all its links. bytes_per_second: of one link, one way. latency_seconds: of a hop in a
    torus, of a small all-reduce through a switch. joined: the ends of a dimension of a torus are linked where it has a
    multiple of so many chips."""

    shape: Literal["torus", "switch"]
    count: int
    bytes_per_second: float
    latency_seconds: float
    source: str
    joined: int = 0


class Network(NamedTuple):
    """Between hosts that no link joins. bytes_per_second: for each chip, one way. latency_seconds: of a message."""

    bytes_per_second: float
    latency_seconds: float
    source: str


TABLES: Mapping[str, tuple[str, ...]] = {
    "products": ("rows", "inputs", "outputs"),
    "attention": ("rows", "keys", "token_bytes"),
    "sampling": ("rows", "columns"),
    "layer": ("rows", "width"),
}
"""Measurements that a chip may have, and the axes of each table. products: one product with a plain weight, of a type
in `PRODUCT_TYPES`, as `products.float32`; attention: one layer, for rows of one token, with bytes of a token's keys and
values; sampling: greedy rows; layer: all else that a layer takes, for hidden states of that width."""

PRODUCT_TYPES = ("float32", "bfloat16", "float16", "int8", "float8")


@dataclass(frozen=True)
class Table:
    """Seconds that were measured at points of a grid. axes: of each the points, rising. seconds: nested, the first axis
    outermost. Between points it is a straight line along each axis, and so beyond the last; below the first as there.
    """

    axes: tuple[tuple[float, ...], ...]
    seconds: Any

    def at(self, *where: float) -> float:
        """Seconds at a place, a number an axis."""
        return _at(self.axes, self.seconds, where)


def _at(axes: tuple[tuple[float, ...], ...], values: Any, where: tuple[float, ...]) -> float:
    if not axes:
        return values
    points, place = axes[0], max(where[0], axes[0][0])
    last = next((i for i in range(1, len(points)) if place <= points[i]), len(points) - 1)
    above = _at(axes[1:], values[last], where[1:])
    if not last:
        return above
    below, (low, high) = _at(axes[1:], values[last - 1], where[1:]), points[last - 1 : last + 1]
    # Beyond the last point noise must not make more cost less.
    return max(below + (above - below) * (place - low) / (high - low), min(below, above))


class Chip(NamedTuple):
    """name: of its file. devices: that JAX has of it. ops_per_second: by the type of a product's operands; a
    multiplication and an addition are two operations. device_bytes_per_second: between its devices, one way.
    measured: by the names of `TABLES`, of a device that has the chip to itself; sharing: devices among which it takes
    turns. calibrated: rates of memory and products were measured."""

    name: str
    device: str
    platform: Literal["tpu", "gpu", "cpu"]
    devices: int
    memory: ChipMemory
    ops_per_second: Mapping[str, float]
    ops_source: str
    links: Links
    network: Network
    device_bytes_per_second: float | None = None
    measured: Mapping[str, Table] = {}
    sharing: int = 1
    calibrated: bool = False

    def shared_by(self, devices: int) -> "Chip":
        """Return the chip as so many devices that share all of it, like those of a CPU."""
        between = self.memory.bytes_per_second / 2 / devices
        return self._replace(devices=devices, sharing=devices, device_bytes_per_second=between)

    def rate(self, kind: str) -> float:
        """Operations a second of products of a type; of one that the chip does not multiply, as bfloat16."""
        known = self.ops_per_second
        return known.get(kind) or known.get("bfloat16") or next(iter(known.values()))


def chip_files() -> dict[str, Path]:
    """The files of known chips, by name."""
    found = [file for folder in _FOLDERS for file in folder.glob("*.yaml")]
    return {file.stem: file for file in sorted(found)}


def read_chip(name: str) -> Chip:
    """Raises ParameterError `chip` that names the known ones."""
    files = chip_files()
    if name not in files:
        raise ParameterError("chip", f"{quoted(name)} is no chip that is known; there are {', '.join(files)}")
    values: dict[str, Any] = yaml.safe_load(files[name].read_text())
    ops = dict(values.pop("ops_per_second"))
    parts = {"memory": ChipMemory, "links": Links, "network": Network}
    made = {key: kind(**values.pop(key)) for key, kind in parts.items()}
    return Chip(name=name, **values, **made, ops_source=ops.pop("source"), ops_per_second=ops)
