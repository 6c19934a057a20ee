"""Texts of flags as one flowing text each: tyro keeps the breaks of lines that are indented, as a docstring's are."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Annotated, Any, get_type_hints

import docstring_parser
import tyro

_NOTHING = ("None", "", "''")
TOLD_DEFAULT = tyro.conf.arg(
    help_behavior_hint=lambda default: f"(default: {default})" if default not in _NOTHING else ""
)
"""Mark of a flag whose help says no default where that is nothing: its text says what holds then."""


def flag_texts(described: Any) -> dict[str, str]:
    """Return the text of each parameter of a function, or field of a dataclass, on one line.

    A field's text is the docstring that follows it.
    """
    doc = docstring_parser.parse_from_object(described)
    return {each.arg_name: " ".join((each.description or "").split()) for each in doc.params}


def flowing_doc(summary: str, texts: Mapping[str, str]) -> str:
    """Return a docstring for tyro. summary: of which the first paragraph counts. texts: of parameters or fields."""
    told = "\n".join(f"    {name}: {text}" for name, text in texts.items())
    return f"{docstring_parser.parse(summary).short_description or ''}\n\nArgs:\n{told}\n"


def told_fields(group: Any, names: Iterable[str]) -> list[Any]:
    """Return some fields of a dataclass's instance for `make_dataclass`, with its values for defaults, marked with
    TOLD_DEFAULT."""
    hints = get_type_hints(type(group), include_extras=True)
    return [
        (name, Annotated[hints[name], TOLD_DEFAULT], dataclasses.field(default=getattr(group, name))) for name in names
    ]


def with_flowing_help(function: FunctionType) -> Callable[..., Any]:
    """Return a copy of a function of flags for tyro: each text flows, and no flag tells that its default is nothing."""
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__doc__ = flowing_doc(function.__doc__ or "", flag_texts(function))
    hints = get_type_hints(function, include_extras=True)
    optional = [each.name for each in inspect.signature(function).parameters.values() if each.default is not each.empty]
    copy.__annotations__ = hints | {name: Annotated[hints[name], TOLD_DEFAULT] for name in optional}
    return copy
