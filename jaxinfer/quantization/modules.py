"""Which modules a checkpoint's lists name: by names, words of names, wildcards and regular expressions."""

import re
from dataclasses import dataclass
from functools import cached_property

from jaxinfer.errors import ModelError, quoted

_LONGEST = 200
_MOST_REPEATS = 4
"""Of a pattern. Each may multiply the time of a search by the length of a name, and a group that repeats squares it."""


@dataclass(frozen=True)
class Modules:
    """names: of whole modules. parts: whole words between dots, anywhere in a name. patterns: regular expressions that
    begin where a name does."""

    names: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def _parts(self) -> frozenset[str]:
        return frozenset(self.parts)

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        return tuple(map(re.compile, self.patterns))

    def holds(self, module: str) -> bool:
        """Whether a module is among them."""
        if module in self._names or any(pattern.match(module) for pattern in self._patterns):
            return True
        return bool(self._parts) and not self._parts.isdisjoint(_runs(module))


def _runs(name: str) -> list[str]:
    """All runs of whole words of a dotted name."""
    words = name.split(".")
    return [".".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]


def checked_pattern(pattern: str, where: str) -> str:
    """A regular expression from a file. Raises ModelError, which begins with `where`, for one that is wrong or that
    might take long."""
    if len(pattern) > _LONGEST or sum(map(pattern.count, "*+{")) > _MOST_REPEATS or re.search(r"\)[*+{]", pattern):
        raise ModelError(
            f"{where}: {quoted(pattern)} might take long to match: at most {_LONGEST} characters and {_MOST_REPEATS} "
            "repetitions, none of them of a group, are allowed"
        )
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ModelError(f"{where}: {quoted(pattern)} is not a regular expression: {error}") from None
    return pattern


def with_wildcards(text: str, where: str, *, anywhere: bool) -> str:
    """The regular expression of a text in which `*` stands for any characters.

    anywhere: of whole words between dots, anywhere in a name; otherwise of the whole name. Raises ModelError as
    `checked_pattern`.
    """
    inner = ".*".join(map(re.escape, text.split("*")))
    return checked_pattern(rf"(?:.*\.)?{inner}(?:\.|$)" if anywhere else rf"{inner}$", where)
