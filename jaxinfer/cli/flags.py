"""Flags into settings: tyro reads them; what it refuses is told as every other error of this program."""

import contextlib
import io
import re
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import tyro

from jaxinfer.cli.absent_flags import refuse_absent_flags
from jaxinfer.cli.help_text import with_flowing_help
from jaxinfer.cli.list_flags import form_of, with_model_apart
from jaxinfer.errors import JaxinferError, ParameterError
from jaxinfer.other_values import hint

_KINDS = {"INT": "a whole number", "FLOAT": "a number"}


def parse_flags(
    kind: Callable[..., Any], command: str, arguments: Sequence[str], *, has_model: bool = False, **options: Any
) -> Any:
    """An object of `kind` from a command's arguments. Raises JaxinferError; `--help` ends the process.

    has_model: whether a file names the model. options: of tyro.cli.
    """
    refuse_absent_flags(arguments)
    options = {"config": (tyro.conf.DisallowNone,), **options}
    arguments = with_model_apart(arguments, form_of(kind), has_model=has_model)
    kind = with_flowing_help(kind) if isinstance(kind, FunctionType) else kind
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, args=arguments, prog=f"jaxinfer {command}", description="", **options)
    except SystemExit as end:
        if not end.code:
            raise
        raise _refusal(end) or JaxinferError(plain_message(said.getvalue())) from None


def _refusal(end: BaseException) -> ParameterError | None:
    """Return the error of a group of settings, which tyro wraps in one of its own."""
    error: BaseException | None = end
    while error is not None and not isinstance(error, ParameterError):
        error = error.__cause__ or error.__context__
    return error


def plain_message(framed: str) -> str:
    """One line from an error that tyro has drawn a box around."""
    lines = [line.strip("│ ").strip() for line in framed.splitlines() if line.startswith("│")]
    rules = [i for i, line in enumerate(lines) if line.startswith("───")]
    first = " ".join(" ".join(lines[: rules[0] if rules else None]).split())
    for pattern, say in _SAYINGS:
        found = re.match(pattern, first)
        if found is not None:
            return say(found, " ".join(lines[rules[0] :] if rules else []))
    return first or " ".join(framed.split())


def _unknown(found: re.Match[str], rest: str) -> str:
    flag = found.group(1).partition("=")[0]
    if not flag.startswith("-"):
        return f"{flag}: was not expected; a text with spaces needs quotes"
    close = re.search(r"Perhaps you meant: (--\S+)", rest)
    return f"{flag}: there is no such flag" + (f"; did you mean {close.group(1).rstrip(',')}?" if close else "")


def _choice(found: re.Match[str], rest: str) -> str:
    value, flag, choices = found.groups()
    listed = choices.replace(chr(39), "").rstrip(",")
    return f"{flag}: {value} is not one of {listed}{hint(flag, value.strip(chr(39)))}"


def _missing(found: re.Match[str], rest: str) -> str:
    flag = found.group(1)
    return f"{flag}: needs a value; one that begins with a dash is given as {flag}=-…"


def _value(found: re.Match[str], rest: str) -> str:
    flag, reason = found.groups()
    value = re.search(r"\[?('[^\]]*')\]?", reason)
    metavar = re.search(rf"{re.escape(flag)}[, ].*?\b({'|'.join(_KINDS)})\b", rest)
    if value is None or metavar is None:
        return f"{flag}: {reason}"
    auto = ", or auto" if re.search(rf"{re.escape(flag)} \w+\|{{auto}}", rest) else ""
    return f"{flag}: {value.group(1)} is not {_KINDS[metavar.group(1)]}{auto}"


def _required(found: re.Match[str], rest: str) -> str:
    wanted = re.findall(r"(?:^|\(required\) )(\S+)(?: \{(\S*)\})?", found.group(1))
    named = [f"{name} ({' or '.join(values.split(','))})" if values else name for name, values in wanted]
    return f"{', '.join(named)}: must be given"


_SAYINGS = (
    (r"Missing from [^:]*: (.*)", _required),
    (r"Unrecognized options: ([^\s,]+)", _unknown),
    (r"invalid choice ('.*?') for argument '(.*?)'\. Expected one of \((.*)\)", _choice),
    (r"Missing value for argument '(.*?)'", _missing),
    (r"Error parsing (\S+): (.*)", _value),
)
