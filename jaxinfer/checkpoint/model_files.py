"""What the JSON files of a model folder say beside the weights. No jax."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelError
from jaxinfer.folder_files import is_there, read_object
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.generation_config import read_generation_config
from jaxinfer.model_config.registry import parse_config


@dataclass(frozen=True)
class ModelFiles:
    """A model folder as it declares itself.

    bos_token_ids, eos_token_ids: the unions of config.json's and generation_config.json's.
    """

    folder: Path
    config: DecoderConfig
    bos_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]


def read_model_files(folder: Path, architecture: str | None = None) -> ModelFiles:
    """Reads config.json and, where it is there, generation_config.json. architecture: of `parse_config`.

    Raises ModelError that names file and field.
    """
    config = parse_config(_read_config(folder), architecture)
    generation = read_generation_config(folder)
    for token in (*generation.eos_token_ids, *config.eos_token_ids):
        if token >= config.vocab_size:
            raise ModelError(f"{folder}: eos_token_id {token} is not below vocab_size, {config.vocab_size}")
    return ModelFiles(
        folder,
        config,
        tuple(dict.fromkeys((*config.bos_token_ids, *generation.bos_token_ids))),
        tuple(dict.fromkeys((*config.eos_token_ids, *generation.eos_token_ids))),
    )


def _read_config(folder: Path) -> dict[str, Any]:
    """config.json, with what modelopt once wrote into a file of its own."""
    raw, beside = read_object(folder / "config.json"), folder / "hf_quant_config.json"
    if "quantization_config" in raw or not is_there(beside):
        return raw
    return {**raw, "quantization_config": {"quant_method": "modelopt", **read_object(beside)}}
