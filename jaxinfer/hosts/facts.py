"""Facts: what all hosts must agree on before they serve, as plain data."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from jaxinfer.errors import shortened
from jaxinfer.version import __version__

Facts = Mapping[str, str | int]
"""Names in the order in which errors list them, and values."""

_PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "libtpu")
_MOST_SHOWN = 8


class Difference(NamedTuple):
    """A fact on which two hosts differ. None: that host does not have it."""

    name: str
    own: str | int | None
    other: str | int | None


def installed_versions() -> dict[str, str | int]:
    """Facts of what is installed: jaxinfer, and the packages that compile programs. Imports none of them."""
    found: dict[str, str | int] = {"jaxinfer": __version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def differences(own: Facts, other: Facts) -> list[Difference]:
    """Return the facts that differ, in the order of `own`; facts that only `other` has come last. 1 and "1" differ."""
    names = [*own, *(name for name in other if name not in own)]
    pairs = (Difference(name, own.get(name), other.get(name)) for name in names)
    return [each for each in pairs if (type(each.own), each.own) != (type(each.other), each.other)]


def describe(found: Sequence[Difference], own_host: int, other_host: int) -> str:
    """An error's text: each fact with the values of both hosts, the first few of many."""
    shown = [
        f"{name} is {_shown(own)} on host {own_host} and {_shown(other)} on host {other_host}"
        for name, own, other in found[:_MOST_SHOWN]
    ]
    if len(found) > _MOST_SHOWN:
        shown.append(f"{len(found) - _MOST_SHOWN} more facts differ")
    return "; ".join(shown)


def least(counts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the counts that every host can have: for each number, as of pages of a KV group, the least of all hosts.
    Raises ValueError if hosts have different numbers of them."""
    each = [tuple(own) for own in counts]
    if len({len(own) for own in each}) != 1:
        raise ValueError(f"hosts have {' and '.join(str(len(own)) for own in each)} counts")
    return tuple(map(min, zip(*each, strict=True)))


def _shown(value: str | int | None) -> str:
    return "absent" if value is None else shortened(repr(value))
