"""Settings of a command: from a YAML file and from flags, which win."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, get_type_hints

import tyro
import yaml

from jaxinfer.cli.aliases import with_our_names
from jaxinfer.cli.flags import parse_flags
from jaxinfer.cli.help_text import TOLD_DEFAULT, flowing_doc
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
ONE_AT_A_TIME = EngineConfig(runner=RunnerConfig(lazy_compile=True))
"""Defaults of the commands that serve one person: a conversation uses few of the programs that many requests need."""


def parse_settings(
    command: str, groups: dict[str, Any], arguments: Sequence[str], *, engine: EngineConfig | None = None
) -> tuple[EngineConfig, Any]:
    """The engine's settings, and an object with one attribute for each of `groups`.

    groups: what the command has beside the engine: a name, and a frozen dataclass of defaults. engine: the command's
    own defaults. Raises JaxinferError where a flag or the file is wrong.
    """
    kind = _settings_class(groups, engine or EngineConfig())
    arguments = with_our_names(arguments, _flags(kind()))
    file = _config_file(arguments)
    defaults = kind() if file is None else _with_file(kind(), file)
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone)
    has_model = defaults.model != kind().model
    settings = parse_flags(kind, command, arguments, has_model=has_model, default=defaults, config=config)
    values = {name: _plain(value) for name, value in vars(settings).items()}
    # A shell completes a folder's name with a slash, which is no part of the model's name.
    values["model"] = values["model"].rstrip("/") or values["model"]
    own = {name: values.pop(name) for name in groups}
    del values["config"]
    return EngineConfig(**values), SimpleNamespace(**own)


def _settings_class(groups: dict[str, Any], engine: EngineConfig) -> type[Any]:
    """EngineConfig's fields with the model as the positional argument, `--config`, and the command's own groups."""
    inside = {field.name: getattr(engine, field.name) for field in dataclasses.fields(EngineConfig)}
    model = inside.pop("model")
    fields: list[Any] = [("model", _MODEL, dataclasses.field(default=model))]
    for name, default in {**groups, **inside}.items():
        shown = _shown(default)
        fields.append((name, type(shown), dataclasses.field(default=shown)))
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
    hints = get_type_hints(kind, include_extras=True)
    fields = [
        (field.name, Annotated[hints[field.name], TOLD_DEFAULT], dataclasses.field(default=getattr(group, field.name)))
        for field in dataclasses.fields(group)
    ]
    namespace = {"__doc__": flowing_doc(kind)}
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
