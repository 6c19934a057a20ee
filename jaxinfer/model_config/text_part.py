"""The text part of models that see or hear: their `text_config`, and where its tensors lie. The rest is left out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.errors import quoted
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.tensor_names import Root, TensorNames

_ROOTS = (Root("language_model.model.", "language_model.lm_head"), Root("model.language_model.", "lm_head"))
_TOWERS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


@dataclass(frozen=True)
class TextPart:
    """Way to find the text part. model_type: default of a `text_config` that names none."""

    model_type: str


TEXT_PARTS = {
    "Gemma3ForConditionalGeneration": TextPart("gemma3_text"),
    "LlavaForConditionalGeneration": TextPart("llama"),
    "Mistral3ForConditionalGeneration": TextPart("mistral"),
}
"""Architectures whose text part can be served, by their names."""


def text_config(raw: Mapping[str, Any], part: TextPart) -> dict[str, Any]:
    """The text part's own config; token ids of the outer file count where it has them.

    `tie_word_embeddings` is true where either says so; a checkpoint's own head counts all the same (`with_own_head`).
    """
    outer = ConfigReader(raw)
    inner = outer.get("text_config")
    if not isinstance(inner, dict):
        raise outer.error("text_config", f"must be an object, not {quoted(inner)}")
    kept = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config", "compression_config")
    shared = {name: raw[name] for name in kept if raw.get(name) is not None}
    if inner.get("tie_word_embeddings") is True:
        shared.pop("tie_word_embeddings", None)  # files of LLaVA say it there only, and false outside
    return {"model_type": part.model_type, **inner, **shared, "architectures": None}


def with_text_names(config: DecoderConfig) -> DecoderConfig:
    """The decoder with its tensors where checkpoints of the whole model have them."""
    names: TensorNames = replace(config.names, roots=_ROOTS, skipped=(*config.names.skipped, *_TOWERS))
    return replace(config, names=names)
