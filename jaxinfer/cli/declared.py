"""Configurations of models and of EAGLE-3 heads, by the name that a command is given. Reads no weights."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxinfer.config import EngineConfig, ModelConfig
from jaxinfer.errors import ModelError

if TYPE_CHECKING:
    from jaxinfer.model_config.decoder_config import DecoderConfig
    from jaxinfer.model_config.eagle3 import Eagle3Config


def read_decoder(
    model: str, architecture: str | None = None, ignored: Collection[str] = ()
) -> tuple["DecoderConfig", str]:
    """model: a folder, a hub id, a config.json, or `demo`. architecture: in place of the one that it declares. ignored:
    unknown keys of config.json that pass. Returns the decoder and the name of its architecture. Raises ModelError."""
    from jaxinfer.folder_files import read_object
    from jaxinfer.model_config.registry import declared_architecture, parse_config

    if (raw := _read_file(model)) is not None:
        return parse_config(raw, architecture, ignored=ignored), architecture or declared_architecture(raw)
    from jaxinfer.build import model_folder
    from jaxinfer.models.declared import read_declared

    folder = model_folder(EngineConfig(model, load=ModelConfig(architecture=architecture)))
    config = read_declared(folder, architecture, ignored).config
    return config, architecture or declared_architecture(read_object(folder / "config.json"))


def read_head(model: str, target: "DecoderConfig") -> "Eagle3Config":
    """Read the configuration of an EAGLE-3 head that drafts for a target. A head that is a config.json alone has the
    target's embedding if that is as wide. Raises ModelError."""
    from jaxinfer.model_config.eagle3 import parse_eagle3

    if (raw := _read_file(model)) is not None:
        config = parse_eagle3(raw, target)
        return replace(config, own_embedding=config.decoder.hidden_size != target.hidden_size)
    from jaxinfer.build import model_folder
    from jaxinfer.models.eagle3_checkpoint import declared_eagle3

    return declared_eagle3(model_folder(EngineConfig(model)), target)


def _read_file(model: str) -> Mapping[str, Any] | None:
    """Read a config.json; None if the argument is a folder or a hub id."""
    from jaxinfer.folder_files import read_object

    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix != ".json":
            raise ModelError(f"{model}: must be a folder, a hub id or a config.json")
        return read_object(path)
    if path.suffix == ".json":
        raise ModelError(f"{model}: there is no such file")
    return None
