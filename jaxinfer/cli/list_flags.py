"""MODEL after a flag of several values: tyro gives such a flag all words up to the next flag, MODEL among them."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import tyro

from jaxinfer.errors import ParameterError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class CommandForm(NamedTuple):
    """The arguments of a command. needed: False where the positional arguments have defaults.

    lists: flags of several values. numbers: those of them whose values are numbers. switches: flags of none.
    """

    positionals: int
    needed: bool
    lists: frozenset[str]
    numbers: frozenset[str]
    switches: frozenset[str]


class _Line(NamedTuple):
    """Arguments by kind. lists: for each flag the values of each time that it is given."""

    words: list[str]
    lists: dict[str, list[list[str]]]
    rest: list[str]


def form_of(kind: Callable[..., Any]) -> CommandForm:
    """Read the form from a dataclass of settings and groups, or from a function of flags."""
    fields = list(_fields(kind))
    positionals = [default for _, hint, default in fields if tyro.conf.Positional in _marks(hint)]
    flags = [(f"--{name.replace('_', '-')}", get_args(hint)[0] if _marks(hint) else hint) for name, hint, _ in fields]
    switches = [flag for flag, hint in flags if hint is bool]
    return CommandForm(
        len(positionals),
        inspect.Parameter.empty in positionals,
        frozenset(flag for flag, hint in flags if get_origin(hint) is tuple),
        frozenset(flag for flag, hint in flags if get_origin(hint) is tuple and get_args(hint)[0] in (int, float)),
        frozenset([*switches, *(flag.replace("--", "--no-", 1) for flag in switches), "-h", "--help"]),
    )


def with_model_apart(arguments: Sequence[str], form: CommandForm, *, has_model: bool) -> list[str]:
    """Return the arguments with MODEL in front, also where the only flag of several values takes it for its second.

    Values of a flag that is given several times add up. has_model: whether a file names the model.
    Raises ParameterError where words may be values or MODEL, and for a flag without a value.
    """
    line = _read(arguments, form)
    words = line.words or _words_of_lists(line, form, has_model=has_model)
    given = [part for flag, times in line.lists.items() for part in _joined(flag, times)]
    return [*words, *line.rest, *given]


def _fields(kind: Callable[..., Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, type and default of every setting, those of groups among them."""
    hints = get_type_hints(kind, include_extras=True)
    for name, parameter in inspect.signature(kind).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            yield from _fields(hints[name])
        else:
            yield name, hints[name], parameter.default


def _marks(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _read(arguments: Sequence[str], form: CommandForm) -> _Line:
    line, rest = _Line([], {}, []), list(arguments)
    while rest:
        argument = rest.pop(0)
        flag, equals, value = argument.partition("=")
        flag = flag.replace("_", "-")
        if flag in form.lists:
            line.lists.setdefault(flag, []).append([value] if equals else _take_words(flag, rest))
        elif not argument.startswith("-"):
            line.words.append(argument)
        else:
            line.rest.append(argument)
            if not equals and flag not in form.switches and rest and not rest[0].startswith("--"):
                line.rest.append(rest.pop(0))
    return line


def _take_words(flag: str, rest: list[str]) -> list[str]:
    words = []
    while rest and not rest[0].startswith("-"):
        words.append(rest.pop(0))
    if not words:
        raise ParameterError(flag, "needs a value")
    return words


def _words_of_lists(line: _Line, form: CommandForm, *, has_model: bool) -> list[str]:
    """Take the positional arguments, of which none stands elsewhere, from behind the first value of a list."""
    several = [
        (flag, values)
        for flag, times in line.lists.items()
        for values in times
        if len(values) > 1 and not (flag in form.numbers and not _names_model(values[-1]))
    ]
    if not several:
        return []
    flag, values = several[0]
    plain = len(several) == 1 and len(values) == 1 + form.positionals and not has_model
    if not plain or not (form.needed or _names_model(values[1])):
        message = (
            f"takes all words after it, here {' '.join(values)}, and MODEL is given nowhere else: put MODEL first; "
            f"without MODEL give each value a {flag} of its own"
        )
        raise ParameterError(flag, message)
    words = values[1:]
    del values[1:]
    return words


def _names_model(word: str) -> bool:
    is_path = word.startswith(("/", "./", "../", "~")) or _exists(word)
    return word == "demo" or is_path or _HUB_ID.fullmatch(word) is not None


def _exists(word: str) -> bool:
    try:
        return Path(word).exists()
    except OSError:  # too long for a file's name
        return False


def _joined(flag: str, times: list[list[str]]) -> list[str]:
    values = [value for time in times for value in time]
    # With `=`, a value may begin with a dash.
    return [f"{flag}={values[0]}"] if len(values) == 1 else [flag, *values]
