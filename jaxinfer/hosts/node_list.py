"""Slurm's lists of nodes: `node[01-03,7],login` is node01, node02, node03, node7 and login."""

import re
from collections.abc import Iterator

MOST_NODES = 4096

_PLAIN = r"[^\s,\[\]]"
_RANGES = r"\[[\d,-]+\]"
_NAME = re.compile(rf"(?:{_PLAIN}|{_RANGES})+")
_PART = re.compile(rf"{_RANGES}|{_PLAIN}+")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand_nodes(text: str) -> list[str]:
    """The names of a list, in its order. A number has at least as many digits as the first of its range. Raises
    ValueError for what is no such list, or has more than MOST_NODES names."""
    nodes: list[str] = []
    at = 0
    while at < len(text) or not nodes:
        found = _NAME.match(text, at)
        if found is None:
            raise ValueError(f"a name was expected at {text[at:][:40]!r}")
        nodes += _expand_name(found[0])
        at = found.end()
        if len(nodes) > MOST_NODES:
            raise ValueError(f"more than {MOST_NODES} names")
        if at < len(text):
            if text[at] != "," or at + 1 == len(text):
                raise ValueError(f"a comma and a name were expected at {text[at:][:40]!r}")
            at += 1
    return nodes


def _expand_name(name: str) -> list[str]:
    """Several brackets give every combination, the last one's numbers in turn first."""
    names = [""]
    for part in _PART.findall(name):
        ends = list(_expand_ranges(part)) if part.startswith("[") else [part]
        if len(names) * len(ends) > MOST_NODES:
            raise ValueError(f"more than {MOST_NODES} names")
        names = [name + end for name in names for end in ends]
    return names


def _expand_ranges(part: str) -> Iterator[str]:
    for text in part[1:-1].split(","):
        found = _RANGE.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is neither a number nor a range like 01-03")
        first, last = found[1], found[2] or found[1]
        if not 0 <= int(last) - int(first) < MOST_NODES:
            raise ValueError(f"the range {text} has no numbers, or more than {MOST_NODES}")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))
