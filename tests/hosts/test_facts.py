"""Differences of facts show both values; counts are the least of all."""

import pytest

from jaxinfer.hosts.facts import Difference, describe, differences, installed_versions, least
from jaxinfer.version import __version__

OWN = {"jaxlib": "0.10.2", "pages": 100, "mesh": "tensor=8"}


def test_equal_facts_have_no_differences() -> None:
    assert differences(OWN, dict(reversed(OWN.items()))) == []


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({**OWN, "jaxlib": "0.10.3"}, [Difference("jaxlib", "0.10.2", "0.10.3")]),
        ({**OWN, "pages": "100"}, [Difference("pages", 100, "100")]),
        ({"pages": 100, "mesh": "tensor=8"}, [Difference("jaxlib", "0.10.2", None)]),
        ({"flag": 1, **OWN, "mesh": ""}, [Difference("mesh", "tensor=8", ""), Difference("flag", None, 1)]),
    ],
)
def test_differences_are_in_order(other: dict, expected: list[Difference]) -> None:
    assert differences(OWN, other) == expected


def test_an_error_shows_both_values_and_both_hosts() -> None:
    text = describe([Difference("jaxlib", "0.10.2", "0.10.3"), Difference("flag", None, 1)], 0, 3)
    assert text == "jaxlib is '0.10.2' on host 0 and '0.10.3' on host 3; flag is absent on host 0 and 1 on host 3"


def test_an_error_is_bounded() -> None:
    many = [Difference(f"fact {i}", "a" * 10_000, i) for i in range(50)]
    text = describe(many, 0, 1)
    assert len(text) < 3000
    assert text.endswith("; 42 more facts differ")


def test_counts_are_the_least_of_all_hosts() -> None:
    assert least([(9, 5), (7, 6), (8, 8)]) == (7, 5)
    assert least([[4]]) == (4,)
    assert least([(), ()]) == ()
    with pytest.raises(ValueError, match="hosts have 1 and 2 counts"):
        least([(1,), (1, 2)])


def test_versions_are_facts() -> None:
    versions = installed_versions()
    assert next(iter(versions.items())) == ("jaxinfer", __version__)
    assert versions["jaxlib"] != "not installed"
