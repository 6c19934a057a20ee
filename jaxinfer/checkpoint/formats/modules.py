"""Modules in a checkpoint's lists, which have names, words of names, wildcards and regular expressions."""

import math
import re
from dataclasses import dataclass
from functools import cached_property

from jaxinfer.errors import ModelError, quoted

_LONGEST = 200
_MOST_STEPS = 2**18
"""Most steps of one pattern: four repetitions and a few alternatives."""
MOST_STEPS = 2**20
"""Most steps of all patterns of a file: some milliseconds for a name."""
MOST_STEPS_OF_MODEL = 2**30
"""Most steps of all patterns with the names of all modules: some seconds."""
_STEPS_OF_REPETITION = 16
"""Factor by which each repetition multiplies the time of a match: four of them take some 16 ** 4 steps for a name of 40
characters."""


@dataclass(frozen=True)
class Modules:
    """names: of whole modules. parts: whole words between dots, anywhere in a name. patterns: regular expressions that
    begin where a name does. pieces: of names, wherever they stand."""

    names: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def _parts(self) -> frozenset[str]:
        return frozenset(self.parts)

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        return tuple(map(re.compile, self.patterns))

    @property
    def steps(self) -> int:
        """A bound of the steps that it takes to match a name with all patterns."""
        return sum(_steps(_bare(pattern)) for pattern in self.patterns)

    def holds(self, module: str) -> bool:
        """Return whether these names contain a module."""
        if module in self._names or any(pattern.match(module) for pattern in self._patterns):
            return True
        if any(piece in module for piece in self.pieces):
            return True
        return bool(self._parts) and not self._parts.isdisjoint(_runs(module))


def _runs(name: str) -> list[str]:
    """All runs of whole words of a dotted name."""
    words = name.split(".")
    return [".".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]


def checked_pattern(pattern: str, where: str) -> str:
    """A regular expression from a file. Raises ModelError, which begins with `where`, for one that is wrong or that
    might take long."""
    if len(pattern) > _LONGEST:
        raise ModelError(
            f"{where}: {quoted(pattern)} might take long to match: at most {_LONGEST} characters are allowed"
        )
    bare = _bare(pattern)
    if re.search(r"\(\?(?!:)|\)[*+{]", bare) or re.search(r"\\[1-9]", pattern.replace("\\\\", "")):
        raise ModelError(
            f"{where}: {quoted(pattern)} might take long to match: groups that repeat, lookarounds, backreferences and "
            "other extensions but (?: are not allowed"
        )
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ModelError(f"{where}: {quoted(pattern)} is not a regular expression: {error}") from None
    if _steps(bare) > _MOST_STEPS:
        raise ModelError(
            f"{where}: {quoted(pattern)} might take long to match: at most {_MOST_STEPS:,} steps are allowed, where a "
            f"repetition multiplies them by {_STEPS_OF_REPETITION}, ? by 2 and n alternatives by n"
        )
    return pattern


def _bare(pattern: str) -> str:
    """A pattern with a letter for each escape and each class of characters: what is left of `*+?{(|)` is syntax."""
    return re.sub(r"\[\^?\]?[^\]]*\]", "a", re.sub(r"\\.", "a", pattern, flags=re.DOTALL))


def _steps(bare: str) -> int:
    """A bound of the ways in which a pattern may match a name: the product of those of its parts."""
    marks = re.sub(r"([*+?])\?", r"\1", bare.replace("(?:", "("))  # ? after a repetition makes it lazy
    repetitions = sum(map(marks.count, "*+{"))
    steps = _STEPS_OF_REPETITION**repetitions * 2 ** marks.count("?")
    alternatives = [1]  # of each group that is open, the whole pattern first
    for mark in marks:
        if mark == "(":
            alternatives.append(1)
        elif mark == "|":
            alternatives[-1] += 1
        elif mark == ")":
            steps *= alternatives.pop()
    return steps * math.prod(alternatives)


def with_wildcards(text: str, where: str, *, anywhere: bool) -> str:
    """The regular expression of a text in which `*` stands for any characters.

    anywhere: of whole words between dots, anywhere in a name; otherwise of the whole name. Raises ModelError as
    `checked_pattern`.
    """
    inner = ".*".join(map(re.escape, text.split("*")))
    return checked_pattern(rf"(?:.*\.)?{inner}(?:\.|$)" if anywhere else rf"{inner}$", where)
