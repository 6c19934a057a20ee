"""Settings of a command: from a YAML file and from flags, which win."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
import yaml

from jaxinfer.config import EngineConfig
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
    tyro.conf.arg(metavar="FILE", help="YAML file of settings, by the names of the flags; flags override it."),
]


def parse_settings(command: str, groups: dict[str, Any], arguments: Sequence[str]) -> tuple[EngineConfig, Any]:
    """The engine's settings, and an object with one attribute for each of `groups`.

    groups: what the command has beside the engine: a name, and a frozen dataclass of defaults. Ends the
    process with status 2 where a flag is wrong; raises ParameterError for the file.
    """
    kind = _settings_class(groups)
    file = _config_file(arguments)
    defaults = kind() if file is None else _with_file(kind(), file)
    settings = tyro.cli(
        kind,
        default=defaults,
        args=list(arguments),
        prog=f"jaxinfer {command}",
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone),
        description="",
    )
    engine = {field.name: getattr(settings, field.name) for field in dataclasses.fields(EngineConfig)}
    return EngineConfig(**engine), settings


def _settings_class(groups: dict[str, Any]) -> type[Any]:
    """EngineConfig's fields with the model as the positional argument, `--config`, and the command's own groups."""
    engine = EngineConfig()
    inside = {field.name: getattr(engine, field.name) for field in dataclasses.fields(EngineConfig)}
    model = inside.pop("model")
    fields: list[Any] = [("model", _MODEL, dataclasses.field(default=model))]
    for name, default in {**groups, **inside}.items():
        fields.append((name, type(default), dataclasses.field(default=default)))
    fields.append(("config", _CONFIG, dataclasses.field(default=None)))
    return dataclasses.make_dataclass("Settings", fields, frozen=True)


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
