"""Agreement: what all hosts have agreed on."""

from typing import NamedTuple

from jaxinfer.hosts.facts import Facts


class Agreement(NamedTuple):
    """decisions: of host 0. counts: the least of all hosts."""

    decisions: Facts
    counts: tuple[int, ...]
