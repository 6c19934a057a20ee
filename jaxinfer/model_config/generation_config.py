"""Read generation_config.json: default sampling parameters of requests, and tokens that end sequences."""

from pathlib import Path
from typing import Any, NamedTuple

from jaxinfer.errors import ModelError, ParameterError, quoted, shortened
from jaxinfer.folder_files import is_there, read_object
from jaxinfer.sampling import SamplingParams, generation_keys, parameters


class GenerationConfig(NamedTuple):
    """sampling: fields of SamplingParams by name, with temperature 0 where the file says do_sample false."""

    sampling: dict[str, float | int]
    bos_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]


def read_generation_config(folder: Path) -> GenerationConfig:
    """Read the generation config of a model folder; it is empty if the file is missing. Raises ModelError that names
    file and field."""
    path = folder / "generation_config.json"
    raw = read_object(path) if is_there(path) else {}
    eos = _token_ids(path, raw, "eos_token_id")
    return GenerationConfig(_sampling(path, raw), _token_ids(path, raw, "bos_token_id"), eos)


def _token_ids(path: Path, raw: dict[str, Any], name: str) -> tuple[int, ...]:
    value = raw.get(name)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise ModelError(f"{path}: {name} must be a token id or a list of them, not {quoted(value)}")
    if any(i >= 2**31 for i in ids):
        raise ModelError(f"{path}: {name} has the id {quoted(max(ids))}; ids are below 2**31")
    return tuple(i for i in ids if i >= 0)


def _sampling(path: Path, raw: dict[str, Any]) -> dict[str, float | int]:
    """NOTE: a temperature beside do_sample false is a leftover: transformers decodes greedily then."""
    declared: dict[str, float | int] = {}
    for name, key in generation_keys().items():
        value = raw.get(key)
        if value is None:
            continue
        kind = int if parameters()[name].kind is int else int | float
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ModelError(f"{path}: {key} must be a number, not {quoted(value)}")
        declared[name] = value
    if raw.get("do_sample") is False:
        declared["temperature"] = 0.0
    try:
        SamplingParams(**declared)  # type: ignore[arg-type]
    except ParameterError as error:
        raise ModelError(f"{path}: {shortened(str(error))}") from error
    return declared
