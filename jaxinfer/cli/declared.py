"""read_decoder: a model's declaration by what a command calls the model. Reads no weights."""

from pathlib import Path
from typing import TYPE_CHECKING

from jaxinfer.config import EngineConfig, ModelConfig
from jaxinfer.errors import ModelError

if TYPE_CHECKING:
    from jaxinfer.model_config.decoder_config import DecoderConfig


def read_decoder(model: str, architecture: str | None = None) -> tuple["DecoderConfig", str]:
    """model: a folder, a hub id, a config.json, or `demo`. architecture: in place of the one that it declares. Returns
    the decoder and the name of its architecture. Raises ModelError."""
    from jaxinfer.folder_files import read_object
    from jaxinfer.model_config.registry import declared_architecture, parse_config

    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix != ".json":
            raise ModelError(f"{model}: must be a folder, a hub id or a config.json")
        raw = read_object(path)
        return parse_config(raw, architecture), architecture or declared_architecture(raw)
    if path.suffix == ".json":
        raise ModelError(f"{model}: there is no such file")
    from jaxinfer.build import model_folder
    from jaxinfer.models.declared import read_declared

    folder = model_folder(EngineConfig(model, load=ModelConfig(architecture=architecture)))
    config = read_declared(folder, architecture).config
    return config, architecture or declared_architecture(read_object(folder / "config.json"))
