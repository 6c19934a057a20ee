"""Settings by name onto a tree of frozen dataclasses: for YAML files and keyword arguments."""

import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from jaxinfer.errors import ParameterError
from jaxinfer.other_values import hint

Tree = TypeVar("Tree")

_JSON = ("speculative_config", "default_chat_template_kwargs")
"""Settings that are JSON on a command line, and may be mappings elsewhere."""


def with_values(tree: Tree, values: Mapping[str, Any]) -> Tree:
    """A copy of `tree` with settings replaced.

    tree: a frozen dataclass of settings and of groups, which are dataclasses themselves. values: a name is
    that of a setting, wherever it stands in the tree, with `-` or `_`; or that of a group, with a mapping.
    Raises ParameterError, naming the setting, for an unknown name, a wrong type or a value out of range.
    """
    places = dict(_places(tree))
    own: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for given, value in values.items():
        name = str(given).replace("-", "_")
        if name in _group_names(tree):
            if not isinstance(value, Mapping):
                raise ParameterError(name, f"must be a mapping of settings, not {type(value).__name__}")
            groups.setdefault(name, {}).update(value)
        elif name not in places:
            raise ParameterError(name, _unknown(name, [*places, *_group_names(tree)]))
        elif places[name] is None:
            own[name] = _converted(tree, name, value)
        else:
            groups.setdefault(str(places[name]), {})[name] = value
    own |= {name: with_values(getattr(tree, name), inside) for name, inside in groups.items()}
    return dataclasses.replace(tree, **own)  # pyright: ignore[reportArgumentType]


def differences(tree: Tree, other: Tree) -> Iterator[str]:
    """Names of the settings whose values differ, of two trees of one kind."""
    for name, group in _places(tree):
        mine, theirs = (tree, other) if group is None else (getattr(tree, group), getattr(other, group))
        if getattr(mine, name) != getattr(theirs, name):
            yield name


def settings(tree: Any) -> Iterator[tuple[str, Any]]:
    """Every setting of a tree and its value, those of its groups among them."""
    for name, group in _places(tree):
        yield name, getattr(tree if group is None else getattr(tree, group), name)


def _group_names(tree: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(tree) if dataclasses.is_dataclass(getattr(tree, field.name))]


def _places(tree: Any) -> Iterator[tuple[str, str | None]]:
    """Every setting, and the group that it stands in; None for the tree itself."""
    groups = _group_names(tree)
    for field in dataclasses.fields(tree):
        if field.name not in groups:
            yield field.name, None
    for group in groups:
        for field in dataclasses.fields(getattr(tree, group)):
            yield field.name, group


def _converted(tree: Any, name: str, value: Any) -> Any:
    if name in _JSON and isinstance(value, Mapping):
        try:
            value = json.dumps(value)
        except TypeError as error:
            raise ParameterError(name, f"is nothing that JSON has: {error}") from None
    kind = get_type_hints(type(tree))[name]
    if kind == tuple[str, ...] and isinstance(value, str):
        value = (value,)
    if get_origin(kind) is Literal and value not in get_args(kind):
        raise ParameterError(name, f"{value!r} is not one of {', '.join(map(str, get_args(kind)))}{hint(name, value)}")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        words = _words(kind)
        message = f"{value!r} is neither a number nor {' or '.join(words)}" if words else str(error)
        raise ParameterError(name, message) from None


def _words(kind: Any) -> list[str]:
    """Return the words that may stand for a number, such as `auto`."""
    return [word for part in get_args(kind) if get_origin(part) is Literal for word in get_args(part)]


def _unknown(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return "is no setting" + (f"; did you mean {close[0]}?" if close else "")
