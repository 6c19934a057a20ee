"""First stage: a model as its files declare it. Reads no weights and needs no device."""

from dataclasses import dataclass
from pathlib import Path

from jaxinfer.build.folders import model_folder
from jaxinfer.config import EngineConfig
from jaxinfer.errors import ModelError, ParameterError
from jaxinfer.folder_files import read_object
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import declared_architecture, parse_config
from jaxinfer.models.declared import read_declared
from jaxinfer.quantization.kv import KV_CODES
from jaxinfer.runner.fit.sizes import context_of


@dataclass(frozen=True)
class DeclaredModel:
    """A model on no device. source: its folder, or a config.json alone. architecture: that it is read as. config: as
    the files have it."""

    source: Path
    architecture: str
    config: DecoderConfig
    eos_token_ids: tuple[int, ...] = ()

    def held(self, config: EngineConfig) -> DecoderConfig:
        """Return the decoder for the context, with the quantisation and the KV type that settings ask for. Raises
        ParameterError for what the model does not allow."""
        if config.parallel.enable_expert_parallel and not self.config.expert_layers:
            raise ParameterError("enable_expert_parallel", "the model has no experts; leave it out")
        decoder = self.config.at_context(context_of(config, self.config)).quantised(config.load.quantization)
        return decoder.keeping(KV_CODES[config.cache.kv_cache_dtype])


def declare(config: EngineConfig) -> DeclaredModel:
    """Read the declarations of the folder that settings name. Raises ModelError."""
    folder, asked = model_folder(config), config.load
    files = read_declared(folder, asked.architecture, asked.ignore_config_keys)
    architecture = asked.architecture or declared_architecture(read_object(folder / "config.json"))
    return DeclaredModel(folder, architecture, files.config, files.eos_token_ids)


def declare_alone(config: EngineConfig) -> DeclaredModel:
    """Read as `declare` does; the model may be a config.json alone."""
    if (file := config_file(config.model)) is None:
        return declare(config)
    raw, asked = read_object(file), config.load
    decoder = parse_config(raw, asked.architecture, ignored=asked.ignore_config_keys)
    return DeclaredModel(file, asked.architecture or declared_architecture(raw), decoder)


def config_file(model: str) -> Path | None:
    """Return the config.json that a model is named by; None: the name is that of a folder. Raises ModelError."""
    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix != ".json":
            raise ModelError(f"{model}: must be a folder, a hub id or a config.json")
        return path
    if path.suffix == ".json":
        raise ModelError(f"{model}: there is no such file")
    return None
