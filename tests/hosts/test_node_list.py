"""Slurm's lists of nodes are expanded as `scontrol show hostnames` does."""

import pytest

from jaxinfer.hosts.node_list import MOST_NODES, expand_nodes


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("node001", ["node001"]),
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("a,b-[1-2],c", ["a", "b-1", "b-2", "c"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("gpu[1,3]-ib.cluster", ["gpu1-ib.cluster", "gpu3-ib.cluster"]),
    ],
)
def test_names(text: str, nodes: list[str]) -> None:
    assert expand_nodes(text) == nodes


@pytest.mark.parametrize(
    "text", ["", ",", "a,", ",a", "a,,b", "a[", "a[]", "a[1", "a]", "a[x]", "a[1-]", "a[2-1]", "a b"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|neither|no numbers"):
        expand_nodes(text)


@pytest.mark.parametrize("text", ["a[1-99999999999]", "a[0-999]b[0-999]c[0-999]", "a[0-4000],b[0-4000]"])
def test_a_list_is_bounded(text: str) -> None:
    with pytest.raises(ValueError, match=f"more than {MOST_NODES}"):
        expand_nodes(text)
