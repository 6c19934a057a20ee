"""Times of exchanges, against what is worked out by hand for each kind of link."""

import pytest

from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.topology import Topology
from jaxinfer.plan.chip import read_chip
from jaxinfer.plan.exchange import Exchange, ExchangeGroup, exchange_seconds, group_of

MB = 10**6


@pytest.mark.parametrize(
    ("axes", "along", "topology", "group"),
    [
        ({"tensor": 8}, ("tensor",), "v6e:2x4", ExchangeGroup(1, 8, 1, (2, 4))),
        # libtpu's ids: 0 (0,0), 1 (1,0), 2 (0,1), 3 (1,1), 4 (0,2)
        ({"tensor": 4}, ("tensor",), "v6e:2x4", ExchangeGroup(1, 4, 1, (2, 2))),
        ({"expert": 2, "tensor": 4}, ("expert",), "v6e:2x4", ExchangeGroup(1, 2, 1, (1, 2))),
        ({"expert": 4, "tensor": 2}, ("expert",), "v6e:2x4", ExchangeGroup(1, 4, 1, (1, 4))),
        ({"expert": 4, "tensor": 4}, ("tensor",), "v6e:4x4", ExchangeGroup(1, 4, 1, (2, 2))),  # a host is 2x2
        ({"expert": 4, "tensor": 4}, ("expert",), "v6e:4x4", ExchangeGroup(1, 1, 4, (2, 2))),
        ({"expert": 2, "tensor": 4}, ("expert", "tensor"), "v6e:2x4", ExchangeGroup(1, 8, 1, (2, 4))),
        ({"tensor": 16}, ("tensor",), "v6e:4x4", ExchangeGroup(1, 4, 4, (4, 4))),
        ({"tensor": 8}, ("tensor",), "v7x:2x2x1", ExchangeGroup(2, 4, 1, (2, 2, 1))),
        ({"expert": 4, "tensor": 2}, ("tensor",), "v7x:2x2x1", ExchangeGroup(2, 1, 1, (1, 1, 1))),
        ({"data": 2, "tensor": 8}, ("tensor",), "h200:1x2x8", ExchangeGroup(1, 8, 1, (1, 1, 8))),
        ({"tensor": 16}, ("tensor",), "h200:1x2x8", ExchangeGroup(1, 8, 2, (1, 2, 8))),
    ],
)
def test_devices_that_take_part(
    axes: dict[str, int], along: tuple[str, ...], topology: str, group: ExchangeGroup
) -> None:
    place = Topology.parse(topology)
    assert group_of(MeshConfig(axes), along, place, read_chip(place.target)) == group


@pytest.mark.parametrize(
    ("kind", "tensor", "topology", "seconds"),
    [
        # A corner of 2x4 has two links of 100 GB/s; to the far corner it is four hops.
        ("all-reduce", 8, "v6e:2x4", 2 * (8 * MB * 7 / 8 / 200e9 + 4e-6)),
        ("all-gather", 8, "v6e:2x4", 8 * MB * 7 / 8 / 200e9 + 4e-6),
        ("all-reduce", 2, "v6e:2x4", 2 * (8 * MB / 2 / 100e9 + 1e-6)),
        # Nothing of 4x4 is joined; 16x16 is, both ways.
        ("all-reduce", 16, "v6e:4x4", 2 * (8 * MB * 15 / 16 / 200e9 + 6e-6)),
        ("all-reduce", 256, "v6e:16x16", 2 * (8 * MB * 255 / 256 / 400e9 + 16e-6)),
        ("all-reduce", 64, "v5p:4x4x4", 2 * (8 * MB * 63 / 64 / 600e9 + 6e-6)),
        # Less than a cube is a mesh: a corner has three links, and seven hops to the other.
        ("all-reduce", 32, "v5p:2x4x4", 2 * (8 * MB * 31 / 32 / 300e9 + 7e-6)),
        # Two devices of a chip first, then four chips.
        ("all-reduce", 8, "v7x:2x2x1", 2 * 8 * MB / 2 / 600e9 + 2 * (8 * MB * 3 / 4 / 200e9 + 2e-6)),
        # 18 links of 25 GB/s to the switch.
        ("all-reduce", 8, "h200:1x1x8", 2 * 8 * MB * 7 / 8 / 450e9 + 5e-6),
        # Of what eight GPUs have added up, each sends its eighth to the other host.
        (
            "all-reduce", 16, "h200:1x2x8",
            2 * 8 * MB * 7 / 8 / 450e9 + 5e-6 + 2 * (MB / 2 / 50e9 + 2e-5),
        ),
        ("all-reduce", 1, "h200:1x1x1", 0.0),
    ],
)  # fmt: skip
def test_seconds(kind, tensor: int, topology: str, seconds: float) -> None:
    place, mesh = Topology.parse(topology), MeshConfig({"tensor": tensor})
    chip = read_chip(place.target)
    assert exchange_seconds(Exchange(kind, 8 * MB, ("tensor",), 1), mesh, place, chip) == pytest.approx(seconds)
    assert exchange_seconds(Exchange(kind, 8 * MB, ("tensor",), 3), mesh, place, chip) == pytest.approx(3 * seconds)


def test_groups_that_share_links_have_a_part_of_them() -> None:
    """Both devices of each v7x chip exchange with others at once."""
    place, mesh, chip = Topology.parse("v7x:2x2x1"), MeshConfig({"expert": 4, "tensor": 2}), read_chip("v7x")
    found = exchange_seconds(Exchange("all-reduce", 8 * MB, ("expert",), 1), mesh, place, chip)
    assert found == pytest.approx(2 * (8 * MB * 3 / 4 / 100e9 + 2e-6))
