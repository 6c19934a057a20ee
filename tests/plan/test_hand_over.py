"""What stages hand over, against what is worked out by hand for each kind of link."""

import pytest

from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.topology import Topology
from jaxinfer.plan.chip import read_chip
from jaxinfer.plan.exchange import Exchange, ExchangeGroup, exchange_seconds, group_of
from jaxinfer.plan.hand_over import hand_over

MB = 10**6


@pytest.mark.parametrize(
    ("axes", "topology", "between", "over", "seconds"),
    [
        # 18 links of 25 GB/s to the switch, of each GPU.
        ({"stage": 2, "tensor": 4}, "h200:1x1x8", (0, 1), "links", 9 * MB / 450e9 + 5e-6),
        # A stage a host, and an adapter a GPU.
        ({"stage": 2, "tensor": 8}, "h200:2x1x8", (0, 1), "network", 9 * MB / 50e9 + 2e-5),
        ({"stage": 2, "tensor": 8}, "h200:1x2x8", (1, 0), "network", 9 * MB / 50e9 + 2e-5),
        # Stages of 6 GPUs: two of the second are on the first host, and the others are not.
        ({"stage": 2, "tensor": 6}, "h200:1x2x8", (0, 1), "network", 9 * MB / 50e9 + 2e-5),
        # Of four stages on two hosts the middle ones cross; so does what comes back from the last.
        ({"stage": 4, "tensor": 4}, "h200:1x2x8", (0, 1), "links", 9 * MB / 450e9 + 5e-6),
        ({"stage": 4, "tensor": 4}, "h200:1x2x8", (1, 2), "network", 9 * MB / 50e9 + 2e-5),
        ({"stage": 4, "tensor": 4}, "h200:1x2x8", (3, 0), "network", 9 * MB / 50e9 + 2e-5),
        # Chips (0,0) and (1,0).
        ({"stage": 2}, "v6e:2x2", (0, 1), "links", 9 * MB / 100e9 + 1e-6),
        # 2x2 chips to the 2x2 behind them: two arrays on the link in the middle, two hops each.
        ({"stage": 2, "tensor": 4}, "v6e:2x4", (0, 1), "links", 2 * 9 * MB / 100e9 + 2e-6),
        # 4x2 chips on two hosts to the 4x2 on the others: links reach over hosts.
        ({"stage": 2, "tensor": 8}, "v6e:4x4", (0, 1), "links", 2 * 9 * MB / 100e9 + 2e-6),
        # Hosts of 2x2: from the one at (2,0) to the one at (0,2), two hops along each.
        ({"stage": 4, "tensor": 4}, "v6e:4x4", (1, 2), "links", 2 * 9 * MB / 100e9 + 4e-6),
        # A ring of 16: from the last 16x8 chips to the first are eight hops, whichever way.
        ({"stage": 2, "tensor": 128}, "v6e:16x16", (1, 0), "links", 8 * 9 * MB / 100e9 + 8e-6),
        # From (0,14) of the last of eight stages to (0,0) are two, over the joined ends.
        ({"stage": 8, "tensor": 32}, "v6e:16x16", (7, 0), "links", 2 * 9 * MB / 100e9 + 2e-6),
        # Two devices of a chip, and two of each chip that share a link.
        ({"stage": 2}, "v7x:2x2x1", (0, 1), "chip", 9 * MB / 600e9),
        ({"stage": 2, "tensor": 4}, "v7x:2x2x1", (0, 1), "links", 2 * 9 * MB / 100e9 + 1e-6),
        # Each shard's rows go to its own devices.
        ({"data": 2, "stage": 2, "tensor": 2}, "v6e:2x4", (0, 1), "links", 9 * MB / 100e9 + 1e-6),
    ],
)  # fmt: skip
def test_seconds(axes: dict[str, int], topology: str, between: tuple[int, int], over: str, seconds: float) -> None:
    place, chip = Topology.parse(topology), read_chip(topology.split(":")[0])
    found = hand_over(9 * MB, *between, MeshConfig(axes), place, chip)
    assert (found.bytes, found.over, found.seconds) == (9 * MB, over, pytest.approx(seconds))


def test_devices_of_a_later_stage_may_lie_on_two_hosts() -> None:
    place, chip, mesh = Topology.parse("h200:1x2x8"), read_chip("h200"), MeshConfig({"stage": 2, "tensor": 6})
    groups = [group_of(mesh, ("tensor",), place, chip, stage) for stage in (0, 1)]
    assert groups == [ExchangeGroup(1, 6, 1, (1, 1, 6)), ExchangeGroup(1, 3, 2, (1, 2, 6))]
    first, second = (exchange_seconds(Exchange("all-reduce", MB, ("tensor",), 1), mesh, place, chip, s) for s in (0, 1))
    assert second > first
