"""Settings of a command: from a YAML file and from flags, which win."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import tyro
import yaml

from jaxinfer.cli.aliases import with_our_names
from jaxinfer.cli.flags import parse_flags
from jaxinfer.cli.help_groups import COMMON, help_groups
from jaxinfer.cli.help_text import flag_texts, flowing_doc, told_fields
from jaxinfer.cli.without_effect import taken_without_effect
from jaxinfer.config import EngineConfig, RunnerConfig
from jaxinfer.config_tree import with_values
from jaxinfer.errors import ParameterError

_MODEL = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(
        metavar="[MODEL]",
        help="A folder in Hugging Face layout, a hub id `owner/name`, or `demo`, the model in the package.",
    ),
]
_CONFIG = Annotated[
    Path | None,
    tyro.conf.arg(
        metavar="FILE",
        help="YAML file of settings, by the names of the flags; flags override it.",
        help_behavior_hint="",
    ),
]
_FLAT = (tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone)
ONE_AT_A_TIME = EngineConfig(runner=RunnerConfig(compile="lazy"))
"""Defaults of the commands that serve one person: a conversation uses few of the programs that many requests need."""


def parse_settings(
    command: str, groups: dict[str, Any], arguments: Sequence[str], *, engine: EngineConfig | None = None
) -> tuple[EngineConfig, Any]:
    """The engine's settings, and an object with one attribute for each of `groups`.

    groups: what the command has beside the engine: a name, and a frozen dataclass of defaults. engine: the command's
    own defaults. Raises JaxinferError where a flag or the file is wrong.
    """
    engine = engine or EngineConfig()
    kind = _settings_class(engine.model, {name: _shown(group) for name, group in _groups(groups, engine).items()})
    arguments, warnings = taken_without_effect(arguments, _flags(kind()))
    arguments = with_our_names(arguments, _flags(kind()))
    file = _config_file(arguments)
    defaults = kind() if file is None else _with_file(kind(), file)
    if command in COMMON and not {"-h", "--help"}.isdisjoint(arguments):
        shown = help_groups({name: getattr(defaults, name) for name in _groups(groups, engine)}, COMMON[command])
        parse_flags(_settings_class(defaults.model, shown), command, ["--help"], config=_FLAT)
    has_model = defaults.model != kind().model
    settings = parse_flags(kind, command, arguments, has_model=has_model, default=defaults, config=_FLAT)
    values = {name: _plain(value) for name, value in vars(settings).items()}
    # A shell completes a folder's name with a slash, which is no part of the model's name.
    values["model"] = values["model"].rstrip("/") or values["model"]
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    own = {name: values.pop(name) for name in groups}
    del values["config"]
    return EngineConfig(**values), SimpleNamespace(**own)


def _groups(own: dict[str, Any], engine: EngineConfig) -> dict[str, Any]:
    """The command's own groups, and the engine's."""
    names = [field.name for field in dataclasses.fields(engine) if field.name != "model"]
    return {**own, **{name: getattr(engine, name) for name in names}}


def _settings_class(model: str, groups: dict[str, Any]) -> type[Any]:
    """Return a class of groups with the model as the positional argument, and `--config`."""
    fields: list[Any] = [("model", _MODEL, dataclasses.field(default=model))]
    fields += [(name, type(group), dataclasses.field(default=group)) for name, group in groups.items()]
    fields.append(("config", _CONFIG, dataclasses.field(default=None)))
    return dataclasses.make_dataclass("Settings", fields, frozen=True)


def _flags(settings: Any) -> list[str]:
    """The flags of all groups."""
    groups = [value for value in vars(settings).values() if dataclasses.is_dataclass(value)]
    names = [field.name for group in groups for field in dataclasses.fields(group)]
    return [f"--{name.replace('_', '-')}" for name in names]


def _shown(group: Any) -> Any:
    """The group as one of a subclass, whose help says no default where that is nothing: the texts say what holds."""
    kind = type(group)
    fields = told_fields(group, [field.name for field in dataclasses.fields(group)])
    namespace = {"__doc__": flowing_doc(kind.__doc__ or "", flag_texts(kind))}
    return dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), namespace=namespace, frozen=True)()


def _plain(value: Any) -> Any:
    """Convert an instance of a class that `_shown` made back to the original class."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return type(value).__bases__[0](**fields)


def _config_file(arguments: Sequence[str]) -> Path | None:
    """The value of `--config`, which must be read before the flags are."""
    for i, argument in enumerate(arguments):
        if argument.startswith("--config="):
            return Path(argument.removeprefix("--config="))
        if argument == "--config" and i + 1 < len(arguments):
            return Path(arguments[i + 1])
    return None


def _with_file(settings: Any, file: Path) -> Any:
    values = read_yaml(file)
    try:
        return with_values(settings, values)
    except ParameterError as error:
        raise ParameterError(error.param, f"{error.message} (in {file})") from None


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ParameterError."""
    try:
        value = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError("config", f"cannot read {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ParameterError("config", f"{file} is not valid YAML: {error}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ParameterError("config", f"{file} must hold a mapping of settings, not a {type(value).__name__}")
    if "config" in value:
        raise ParameterError("config", f"is a flag and no setting: {file} cannot name another file")
    return value
