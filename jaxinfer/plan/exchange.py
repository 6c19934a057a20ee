"""Exchanges between the devices of a mesh, and how long their links take for them. Imports no jax.

What is computed is what the worst placed chip of a group must send or receive over its links, at their peak: a
reduce-scatter, then an all-gather. A switch that adds up by itself, or a small array that all send to all, can take
less. Where hosts are joined by a network, an all-reduce adds up within hosts first.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.rules import AXES
from jaxinfer.parallel.topology import Topology
from jaxinfer.plan.chip import Chip

Kind = Literal["all-reduce", "all-gather"]

_HOST = (2, 2)
"""Chips of a host in the first two dimensions, where a slice has several."""
_PASSES: dict[Kind, int] = {"all-reduce": 2, "all-gather": 1}
"""Times that the exchanged array passes over links: an all-reduce is a reduce-scatter and an all-gather."""


class Exchange(NamedTuple):
    """bytes: of the array that a device has afterwards. axes: of the mesh, along which devices take part. count: how
    often in a step."""

    kind: Kind
    bytes: int
    axes: tuple[str, ...]
    count: int


class ExchangeGroup(NamedTuple):
    """Devices that exchange, as they lie on chips. devices: of a chip. extents: chips along each dimension of the
    topology, none where there is no torus. chips: of a host."""

    devices: int
    chips: int
    hosts: int
    extents: tuple[int, ...] = ()


def group_of(mesh: MeshConfig, axes: Collection[str], topology: Topology, chip: Chip, stage: int = 0) -> ExchangeGroup:
    """Devices along `axes` that include the first of a stage."""
    numbers = device_numbers(mesh, axes, stage)
    chips = sorted({number // chip.devices for number in numbers})
    hosts = {host_of(number, topology) for number in chips}
    places = [chip_place(number, topology, chip) for number in chips]
    extents = tuple(len(set(along)) for along in zip(*places, strict=True))
    return ExchangeGroup(len(numbers) // len(chips), len(chips) // len(hosts), len(hosts), extents)


def device_numbers(mesh: MeshConfig, axes: Collection[str], stage: int) -> list[int]:
    """Return the numbers of a stage's devices along `axes`, including its first: JAX numbers them along the last axis
    of a mesh first."""
    steps = [math.prod(mesh.shape[place + 1 :]) for place in range(len(AXES))]
    ranges = [range(size if name in axes else 1) for name, size in zip(AXES, mesh.shape, strict=True)]
    first = stage * steps[AXES.index("stage")]
    return [first + sum(map(int.__mul__, place, steps)) for place in itertools.product(*ranges)]


def host_of(chip_number: int, topology: Topology) -> int:
    """The host that a chip is on."""
    return chip_number // (topology.chips // topology.hosts)


def chip_place(number: int, topology: Topology, chip: Chip) -> tuple[int, ...]:
    """Return a chip's coordinates in its topology. libtpu numbers chips host by host, hosts and their chips along the
    first dimension first; GPUs are numbered along the last one first."""
    shape = topology.shape
    if chip.platform == "gpu":
        return _digits(number, shape[::-1])[::-1]
    block = shape if topology.hosts == 1 else (*_HOST, *(1,) * (len(shape) - len(_HOST)))
    host, within = divmod(number, math.prod(block))
    hosts = _digits(host, [whole // part for whole, part in zip(shape, block, strict=True)])
    places = zip(hosts, block, _digits(within, block), strict=True)
    return tuple(at * part + inner for at, part, inner in places)


def _digits(number: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Along each size, the first fastest."""
    found = []
    for size in sizes:
        number, at = divmod(number, size)
        found.append(at)
    return tuple(found)


def exchange_seconds(exchange: Exchange, mesh: MeshConfig, topology: Topology, chip: Chip, stage: int = 0) -> float:
    """Estimate the seconds of all `count` exchanges, one after another, among the devices of a stage."""
    group = group_of(mesh, exchange.axes, topology, chip, stage)
    passes = _PASSES[exchange.kind]
    seconds = 0.0
    if group.devices > 1 and chip.device_bytes_per_second:
        seconds += passes * _part(exchange.bytes, group.devices) / chip.device_bytes_per_second
    if chip.links.shape == "torus":
        seconds += _over_torus(exchange.bytes, passes, group, topology, chip)
    else:
        seconds += _through_switch(exchange.bytes, passes, group, chip)
    return exchange.count * seconds


def _part(size: float, parts: int) -> float:
    """Bytes that each of so many lacks at first."""
    return size * (parts - 1) / parts


def _over_torus(size: int, passes: int, group: ExchangeGroup, topology: Topology, chip: Chip) -> float:
    chips = group.chips * group.hosts
    if chips == 1:
        return 0.0
    joined = ring_lengths(topology.shape, chip)
    along = [(extent, _links(extent, end)) for extent, end in zip(group.extents, joined, strict=True)]
    links = sum(count for _, count in along)
    hops = sum(extent // 2 if count == 2 else extent - 1 for extent, count in along)
    sharing = chip.devices // group.devices  # groups that exchange over the same links at once
    bandwidth = min(links, chip.links.count) * chip.links.bytes_per_second / sharing
    return passes * (_part(size, chips) / bandwidth + hops * chip.links.latency_seconds)


def ring_lengths(shape: Sequence[int], chip: Chip) -> list[int]:
    """Chips along each dimension whose ends are linked; 0 where they are not. In three dimensions all are, or none."""
    whole = [size if size % chip.links.joined == 0 else 0 for size in shape]
    return whole if len(shape) < 3 or all(whole) else [0] * len(shape)


def _links(extent: int, ring: int) -> int:
    """Return the links of the chip that has the fewest, along a dimension in which `extent` chips take part. ring:
    chips that are joined in a ring, 0 if the ends are not."""
    return extent - 1 if extent < 3 else 2 if extent == ring else 1


def _through_switch(size: int, passes: int, group: ExchangeGroup, chip: Chip) -> float:
    seconds = 0.0
    if group.chips > 1:
        links = chip.links
        seconds += passes * _part(size, group.chips) / (links.count * links.bytes_per_second) + links.latency_seconds
    if group.hosts > 1:
        network = chip.network
        shared = _part(size / group.chips, group.hosts)
        seconds += passes * (shared / network.bytes_per_second + network.latency_seconds)
    return seconds
