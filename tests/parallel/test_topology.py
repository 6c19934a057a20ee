"""Hosts and devices of topologies, as the vendors' pages have them (named beside the table)."""

import pytest

from jaxinfer.parallel.topology import TARGETS, Topology

KNOWN = [
    ("v5e:1x1", 1, 1),
    ("v5e:2x2", 4, 1),
    ("v5e:2x4", 8, 1),
    ("v5e:4x4", 16, 4),
    ("v6e:2x4", 8, 1),
    ("v6e:4x4", 16, 4),
    ("v6e:16x16", 256, 64),
    ("v7x:2x2x1", 8, 1),
    ("v7x:2x2x2", 16, 2),
    ("v7x:4x4x4", 128, 16),
    ("h200:1x1x1", 1, 1),
    ("h200:1x1x8", 8, 1),
    ("h200:2x1x8", 16, 2),
    ("h200:1x4x8", 32, 4),
    ("v5p:2x2x1", 4, 1),
    ("v5p:4x4x4", 64, 16),
    ("a100:1x1x8", 8, 1),
    ("h100:1x1x8", 8, 1),
    ("b200:2x1x8", 16, 2),
    ("cpu:8", 8, 1),
]


@pytest.mark.parametrize(("text", "devices", "hosts"), KNOWN)
def test_devices_and_hosts(text: str, devices: int, hosts: int):
    found = Topology.parse(text)
    assert (found.devices, found.hosts, str(found)) == (devices, hosts, text)


def test_every_target_is_among_them():
    assert {text.partition(":")[0] for text, _, _ in KNOWN} == set(TARGETS)
