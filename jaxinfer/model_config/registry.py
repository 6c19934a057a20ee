"""From a config.json to a DecoderConfig, by the name of its architecture."""

from collections.abc import Collection, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.config_json.unknown_keys import UnknownKeys
from jaxinfer.errors import ModelError, UnknownArchitectureError, quoted
from jaxinfer.model_config.architecture import Architecture
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.families import (
    cohere,
    deepseek,
    gemma,
    glm,
    gpt2,
    gpt_oss,
    granite,
    internlm,
    llama,
    minicpm,
    minimax_m2,
    ministral3,
    mistral,
    mixtral,
    olmo,
    phi3,
    qwen2,
    qwen3,
    qwen_moe,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
)
from jaxinfer.model_config.refused import REFUSED
from jaxinfer.model_config.rope_config import MAX_CONTEXT
from jaxinfer.model_config.schemes import with_declared_schemes
from jaxinfer.model_config.text_part import TEXT_PARTS, text_config, with_text_names

# Plugins add to these: an entry point of this group, named as the architecture, that is a Parser or an Architecture.
ENTRY_POINT_GROUP = "jaxinfer.models"

_FAMILIES = (
    cohere,
    deepseek,
    gemma,
    glm,
    gpt2,
    gpt_oss,
    granite,
    internlm,
    llama,
    minicpm,
    minimax_m2,
    ministral3,
    mistral,
    mixtral,
    olmo,
    phi3,
    qwen2,
    qwen3,
    qwen_moe,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
)
ARCHITECTURES: dict[str, Architecture] = {
    name: architecture for family in _FAMILIES for name, architecture in family.ARCHITECTURES.items()
}
"""Architectures of this package, by their names in config.json."""
_MODEL_TYPES = {kind: name for name, architecture in ARCHITECTURES.items() for kind in architecture.model_types}
_OLD_NAMES = {"LLaMAForCausalLM": "LlamaForCausalLM"}
"""Names of transformers' first files."""
LARGEST = {
    "vocab_size": 2**24,
    "hidden_size": 2**18,
    "intermediate_size": 2**22,
    "num_hidden_layers": 4096,
    "num_attention_heads": 2**14,
    "num_key_value_heads": 2**14,
    "head_dim": 2**14,
    "num_experts": 2**14,
    "num_local_experts": 2**14,
    "n_routed_experts": 2**14,
    "moe_intermediate_size": 2**22,
    "shared_expert_intermediate_size": 2**22,
    "shared_intermediate_size": 2**22,
    "n_shared_experts": 2**14,
    "num_nextn_predict_layers": 4096,
    "num_mtp_layers": 4096,
    "n_embd": 2**18,
    "n_head": 2**14,
    "n_inner": 2**22,
    "n_layer": 4096,
    "n_positions": MAX_CONTEXT,
    "max_position_embeddings": MAX_CONTEXT,
    "max_window_layers": 2**31 - 1,
    "sliding_window": 2**31 - 1,
}
"""Sizes far beyond those of any model."""


def parse_config(
    raw: Mapping[str, Any], architecture: str | None = None, *, ignored: Collection[str] = (), warns: bool = True
) -> DecoderConfig:
    """The decoder that a config.json declares; both older and newer names of its fields are read.

    Of a model that sees or hears, its text part. architecture: instead of the one that it names. ignored: unknown keys
    that pass; see `UnknownKeys`. warns: about others that pass. Raises ModelError that names the field: a rope type,
    activation or form of quantised weights that is not supported, a missing or wrong value, or a key that is unknown
    and might change the numbers; UnknownArchitectureError for one that nothing here knows.
    """
    name, unknown = architecture or declared_architecture(raw), UnknownKeys(ignored)
    part = TEXT_PARTS.get(name)
    if part is not None:
        inner = text_config(raw, part)
        own = find_architecture(declared_architecture(inner))
        found = with_text_names(_parsed(inner, own, unknown, nested=True))
    else:
        found = _parsed(raw, find_architecture(name), unknown)
    if warns:
        unknown.warn("config.json")
    return with_declared_schemes(found)


def _parsed(
    raw: Mapping[str, Any], architecture: Architecture, unknown: UnknownKeys, *, nested: bool = False
) -> DecoderConfig:
    where = "config.json: text_config" if nested else "config.json"
    _check_sizes(raw, where)
    if nested:
        raw = {**architecture.defaults, **raw}
    try:
        return architecture.parse(ConfigReader(raw, where, unknown))
    except (ArithmeticError, MemoryError) as error:
        raise ModelError(f"{where}: has a number that is out of range: {error}") from None


def _check_sizes(raw: Mapping[str, Any], where: str) -> None:
    """Before anything is made of them: a tuple of 10**12 layers takes all memory."""
    for name, most in LARGEST.items():
        value = raw.get(name)
        if isinstance(value, int | float) and not value <= most:
            raise ModelError(f"{where}: {name} is {quoted(value)}; at most {most} is supported")


def known_architectures() -> list[str]:
    """Names that `parse_config` accepts, plugins included."""
    return sorted({*ARCHITECTURES, *TEXT_PARTS, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def declared_architecture(raw: Mapping[str, Any]) -> str:
    """The first of `architectures` that is known, or that of `model_type` where none is listed. Raises ModelError.

    Where none of several is known, the first: `find_architecture` has the reason.
    """
    names = raw.get("architectures")
    if names is None or names == []:
        kind = raw.get("model_type")
        if not isinstance(kind, str) or kind not in _MODEL_TYPES:
            kind, known = quoted(kind), ", ".join(sorted(_MODEL_TYPES))
            raise ModelError(f"config.json: architectures is missing and model_type {kind} is not one of {known}")
        return _MODEL_TYPES[kind]
    texts = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    if not texts or len(texts) != len(names):
        raise ModelError(f"config.json: architectures must be a list of names, not {quoted(names)}")
    ours = [_OLD_NAMES.get(name, name) for name in texts]
    known = known_architectures()
    return next((name for name in ours if name in known), ours[0])


def find_architecture(name: str) -> Architecture:
    """An architecture by its name in config.json.

    Raises UnknownArchitectureError, with a reason where one is known; ModelError for a plugin that cannot be loaded.
    """
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return _load_plugin(point)
    reason, longer = REFUSED.get(name), [known for known in known_architectures() if known.startswith(name)]
    said = f": {reason}" if reason else "; `jaxinfer models` lists those that are"
    if name and longer:
        said = f"; did you mean {longer[0]}?"
    raise UnknownArchitectureError(f"config.json: architectures: {quoted(name)} is not supported{said}", name)


def _load_plugin(point: EntryPoint) -> Architecture:
    try:
        found = point.load()
    except Exception as error:
        raise ModelError(f"architecture {point.name}: its plugin {point.value} cannot be loaded: {error}") from error
    return found if isinstance(found, Architecture) else Architecture(found, checked_against="nothing here")
