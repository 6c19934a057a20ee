"""What the JSON files of a model folder say beside the weights. No jax."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelError, ParameterError, quoted, shortened
from jaxinfer.folder_files import is_there, read_object
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import parse_config
from jaxinfer.sampling import SamplingParams, generation_keys, parameters


@dataclass(frozen=True)
class ModelFiles:
    """A model folder as it declares itself.

    sampling_defaults: fields of SamplingParams that generation_config.json sets (temperature 0 where it says
    do_sample false). eos_token_ids: the union of config.json's and generation_config.json's.
    """

    folder: Path
    config: DecoderConfig
    sampling_defaults: dict[str, float | int]
    bos_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]


def read_model_files(folder: Path) -> ModelFiles:
    """Reads config.json and, where it is there, generation_config.json.

    Raises ModelError that names file and field.
    """
    config = parse_config(read_object(folder / "config.json"))
    path = folder / "generation_config.json"
    generation = read_object(path) if is_there(path) else {}
    eos = _token_ids(path, generation, "eos_token_id")
    bos = _token_ids(path, generation, "bos_token_id")
    for token in (*eos, *config.eos_token_ids):
        if token >= config.vocab_size:
            raise ModelError(f"{folder}: eos_token_id {token} is not below vocab_size, {config.vocab_size}")
    return ModelFiles(
        folder,
        config,
        _sampling_defaults(path, generation),
        tuple(dict.fromkeys((*config.bos_token_ids, *bos))),
        tuple(dict.fromkeys((*config.eos_token_ids, *eos))),
    )


def _token_ids(path: Path, raw: dict[str, Any], name: str) -> tuple[int, ...]:
    value = raw.get(name)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise ModelError(f"{path}: {name} must be a token id or a list of them, not {quoted(value)}")
    if any(i >= 2**31 for i in ids):
        raise ModelError(f"{path}: {name} has the id {quoted(max(ids))}; ids are below 2**31")
    return tuple(i for i in ids if i >= 0)


def _sampling_defaults(path: Path, raw: dict[str, Any]) -> dict[str, float | int]:
    """NOTE: a temperature beside do_sample false is a leftover: transformers decodes greedily then."""
    defaults: dict[str, float | int] = {}
    for name, key in generation_keys().items():
        value = raw.get(key)
        if value is None:
            continue
        kind = int if parameters()[name].kind is int else int | float
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ModelError(f"{path}: {key} must be a number, not {quoted(value)}")
        defaults[name] = value
    if raw.get("do_sample") is False:
        defaults["temperature"] = 0.0
    try:
        SamplingParams(**defaults)  # type: ignore[arg-type]
    except ParameterError as error:
        raise ModelError(f"{path}: {shortened(str(error))}") from error
    return defaults
