"""Transfers from one stage of a pipeline to another, and their time. Imports no jax.

Each device of a stage has all hidden states of its rows, and so has each of the next: an array goes from every device
to the one in the same place. Through a switch all go at once; in a torus several may share a link.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.rules import AXES
from jaxinfer.parallel.topology import Topology
from jaxinfer.plan.chip import Chip
from jaxinfer.plan.exchange import chip_place, device_numbers, host_of, ring_lengths

Way = Literal["chip", "links", "network"]

_OTHER_AXES = tuple(axis for axis in AXES if axis != "stage")
_Link = tuple[tuple[int, ...], int, int]
"""The chip where it begins, its dimension, and the direction along that."""


class HandOver(NamedTuple):
    """bytes: that each device gets. over: the slowest way that one of them comes."""

    bytes: int
    seconds: float
    over: Way


def hand_over(size: int, source: int, target: int, mesh: MeshConfig, topology: Topology, chip: Chip) -> HandOver:
    """Estimate the transfer of `size` bytes to each device of stage `target` from those of stage `source`."""
    numbers = zip(*(device_numbers(mesh, _OTHER_AXES, stage) for stage in (source, target)), strict=True)
    pairs = [(one // chip.devices, other // chip.devices) for one, other in numbers]
    between = [pair for pair in pairs if pair[0] != pair[1]]
    if not between:
        return HandOver(size, size / (chip.device_bytes_per_second or chip.memory.bytes_per_second), "chip")
    if chip.links.shape == "torus":
        return HandOver(size, _over_torus(size, between, topology, chip), "links")
    crossing = [pair for pair in between if host_of(pair[0], topology) != host_of(pair[1], topology)]
    if not crossing:
        at_once = _most(pair[0] for pair in between)
        rate = chip.links.count * chip.links.bytes_per_second
        return HandOver(size, size * at_once / rate + chip.links.latency_seconds, "links")
    at_once = _most(pair[0] for pair in crossing)
    return HandOver(size, size * at_once / chip.network.bytes_per_second + chip.network.latency_seconds, "network")


def _most(chips: Iterator[int]) -> int:
    """Count the occurrences of the most frequent chip."""
    return max(Counter(chips).values())


def _over_torus(size: int, pairs: Sequence[tuple[int, int]], topology: Topology, chip: Chip) -> float:
    """Along the shortest way of each, one dimension after another; the link that most of them take decides."""
    rings = ring_lengths(topology.shape, chip)
    places = (tuple(chip_place(number, topology, chip) for number in pair) for pair in pairs)
    routes = [list(_route(start, end, rings)) for start, end in places]
    shared = max(Counter(link for route in routes for link in route).values())
    return size * shared / chip.links.bytes_per_second + max(map(len, routes)) * chip.links.latency_seconds


def _route(start: Sequence[int], end: Sequence[int], rings: Sequence[int]) -> Iterator[_Link]:
    """rings: of each dimension how many chips are joined in a ring, 0 where the ends are not."""
    at = list(start)
    for dimension, ring in enumerate(rings):
        ahead = end[dimension] - at[dimension]
        back = ahead % ring > ring // 2 if ring else ahead < 0
        while at[dimension] != end[dimension]:
            yield tuple(at), dimension, -1 if back else 1
            at[dimension] += -1 if back else 1
            if ring:
                at[dimension] %= ring
