"""Read the JSON files of a model folder. No jax."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelError
from jaxinfer.folder_files import is_there, read_object
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.generation_config import read_generation_config
from jaxinfer.model_config.registry import parse_config

_BESIDE = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Files in which modelopt, AutoGPTQ and AutoAWQ once described quantised weights, and their `quant_method`."""


@dataclass(frozen=True)
class ModelFiles:
    """A model folder as it declares itself.

    bos_token_ids, eos_token_ids: the unions of config.json's and generation_config.json's.
    """

    folder: Path
    config: DecoderConfig
    bos_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]


def read_model_files(folder: Path, architecture: str | None = None, ignored: Collection[str] = ()) -> ModelFiles:
    """Reads config.json and, where it is there, generation_config.json. architecture, ignored: of `parse_config`.

    Raises ModelError that names file and field.
    """
    config = parse_config(read_config(folder), architecture, ignored=ignored)
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


def read_config(folder: Path) -> dict[str, Any]:
    """config.json, with what tools once wrote of quantised weights into a file of their own. Raises ModelError."""
    raw = read_object(folder / "config.json")
    beside = next((name for name in _BESIDE if is_there(folder / name)), None)
    if beside is None or raw.keys() & {"quantization_config", "compression_config"}:
        return raw
    return {**raw, "quantization_config": {"quant_method": _BESIDE[beside], **read_object(folder / beside)}}
