"""From a config.json to a DecoderConfig, by the name of its architecture."""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from jaxinfer.errors import ModelError, quoted
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.families import llama, mistral, qwen2, qwen3
from jaxinfer.model_config.reader import ConfigReader
from jaxinfer.model_config.rope_config import MAX_CONTEXT

Parser = Callable[[ConfigReader], DecoderConfig]

# Plugins add to these: an entry point of this group, named as the architecture, that is a Parser.
ENTRY_POINT_GROUP = "jaxinfer.models"

_ARCHITECTURES: dict[str, Parser] = {
    "LlamaForCausalLM": llama.parse,
    "MistralForCausalLM": mistral.parse,
    "Qwen2ForCausalLM": qwen2.parse,
    "Qwen3ForCausalLM": qwen3.parse,
}
LARGEST = {
    "vocab_size": 2**24,
    "hidden_size": 2**18,
    "intermediate_size": 2**22,
    "num_hidden_layers": 4096,
    "num_attention_heads": 2**14,
    "num_key_value_heads": 2**14,
    "head_dim": 2**14,
    "max_position_embeddings": MAX_CONTEXT,
    "max_window_layers": 2**31 - 1,
    "sliding_window": 2**31 - 1,
}
"""Sizes far beyond those of any model."""
_MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def parse_config(raw: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a config.json declares; both older and newer names of its fields are read.

    Raises ModelError that names the field: an architecture, rope type or activation that is not supported, a
    quantised checkpoint, a missing or wrong value, or a key that is unknown and might change the numbers.
    """
    _check_sizes(raw)
    try:
        return _parser(_architecture(raw))(ConfigReader(raw))
    except (ArithmeticError, MemoryError) as error:
        raise ModelError(f"config.json: has a number that is out of range: {error}") from None


def _check_sizes(raw: Mapping[str, Any]) -> None:
    """Before anything is made of them: a tuple of 10**12 layers takes all memory."""
    for name, most in LARGEST.items():
        value = raw.get(name)
        if isinstance(value, int | float) and not value <= most:
            raise ModelError(f"config.json: {name} is {quoted(value)}; at most {most} is supported")


def known_architectures() -> list[str]:
    """Names that `parse_config` accepts, plugins included."""
    return sorted({*_ARCHITECTURES, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures")
    if names is None:
        kind = raw.get("model_type")
        if not isinstance(kind, str) or kind not in _MODEL_TYPES:
            kind, known = quoted(kind), ", ".join(sorted(_MODEL_TYPES))
            raise ModelError(f"config.json: architectures is missing and model_type {kind} is not one of {known}")
        return _MODEL_TYPES[kind]
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ModelError(f"config.json: architectures must be a list of one name, not {quoted(names)}")
    return names[0]


def _parser(name: str) -> Parser:
    if name in _ARCHITECTURES:
        return _ARCHITECTURES[name]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return point.load()
    known = ", ".join(known_architectures())
    raise ModelError(f"config.json: architectures: {quoted(name)} is not supported; supported are {known}")
