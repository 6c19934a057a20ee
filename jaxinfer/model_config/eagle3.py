"""Eagle3Config: what an EAGLE-3 head declares (Li et al., arXiv:2503.01840). Nothing here imports jax."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxinfer.errors import ModelError, quoted
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import parse_config

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
"""Names in config.json: SpecForge's and SGLang's, and vLLM's."""
FEATURES = 3
"""Layers of the target whose hidden states the head reads."""
_OWN_KEYS = (
    "architectures", "model_type", "draft_vocab_size", "target_hidden_size", "eagle_config",
    "eagle_aux_hidden_state_layer_ids", "norm_before_residual", "vocab_size", "num_hidden_layers",
    "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id",
)  # fmt: skip
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Eagle3Config:
    """One EAGLE-3 head.

    decoder: its one layer, its norm and its output matrix; its `vocab_size` is that of the draft vocabulary.
    vocab_size, target_hidden: of the target. layers: of the target, those whose inputs are the features; the number of
    all layers stands for the output of the last. norm_before_residual: the normed hidden state goes on past attention,
    not the one before its norm (heads of `speculators`). own_embedding: it has an embedding and does not read the
    target's.
    """

    decoder: DecoderConfig
    vocab_size: int
    target_hidden: int
    layers: tuple[int, ...]
    norm_before_residual: bool = False
    own_embedding: bool = False

    def over(self, heads: int, vocabulary: int, experts: int = 1, redundant: int = 0) -> "Eagle3Config":
        """Return the head split over devices as by `DecoderConfig.over`; it has no experts to copy."""
        return replace(self, decoder=self.decoder.over(heads, vocabulary))


def is_eagle3(raw: Mapping[str, Any]) -> bool:
    """Return whether a config.json describes an EAGLE-3 head."""
    names = raw.get("architectures")
    return isinstance(names, list) and len(names) == 1 and names[0] in ARCHITECTURES


def parse_eagle3(raw: Mapping[str, Any], target: DecoderConfig) -> Eagle3Config:
    """The head that a config.json declares, to draft for a target. Raises ModelError that names the field."""
    if not is_eagle3(raw):
        raise _error("architectures", f"must be {' or '.join(ARCHITECTURES)}, not {quoted(raw.get('architectures'))}")
    if (layers := _integer(raw, "num_hidden_layers", 1)) != 1:
        raise _error("num_hidden_layers", f"must be 1, not {layers}")
    vocab_size = _integer(raw, "vocab_size", target.vocab_size)
    if vocab_size != target.vocab_size:
        raise _error("vocab_size", f"is {vocab_size}, and the target's is {target.vocab_size}")
    target_hidden = _integer(raw, "target_hidden_size", target.hidden_size)
    if target_hidden != target.hidden_size:
        raise _error("target_hidden_size", f"is {target_hidden}, and the target's is {target.hidden_size}")
    drafts = _integer(raw, "draft_vocab_size", vocab_size)
    if not 0 < drafts <= vocab_size:
        raise _error("draft_vocab_size", f"must be 1 to vocab_size, {vocab_size}, not {drafts}")
    return Eagle3Config(_decoder(raw, drafts), vocab_size, target_hidden, _layers(raw, target.num_layers), _flag(raw))


def default_layers(count: int) -> tuple[int, ...]:
    """Return the layers whose inputs a head reads by default, in a target of `count` layers, as in vLLM."""
    return tuple(min(max(layer, 0), count) for layer in (2, count // 2, count - 3))


def _decoder(raw: Mapping[str, Any], drafts: int) -> DecoderConfig:
    """The head's layer as Llama's."""
    others = {name: value for name, value in raw.items() if name not in _OWN_KEYS}
    sizes = {"vocab_size": drafts, "num_hidden_layers": 1, "tie_word_embeddings": False}
    decoder = parse_config({**others, **sizes}, "LlamaForCausalLM")
    if decoder.declared is not None:
        raise _error("quantization_config", "quantised heads are not supported")
    mixer, mlp = decoder.layers[0].mixer, decoder.layers[0].mlp
    for name, has_bias in (("attention_bias", mixer.qkv_bias), ("mlp_bias", mlp.bias)):
        if has_bias:
            raise _error(name, "is not supported in an EAGLE-3 head")
    return decoder


def _layers(raw: Mapping[str, Any], count: int) -> tuple[int, ...]:
    """Layers whose inputs are read. At the top level ids are of those (vLLM, speculators); within `eagle_config` they
    are of layers whose outputs are read (SGLang, TensorRT-LLM)."""
    nested = raw.get("eagle_config") or {}
    if not isinstance(nested, Mapping):
        raise _error("eagle_config", f"must be an object, not {quoted(nested)}")
    if nested.get("use_aux_hidden_state", True) is not True:
        raise _error("eagle_config", "use_aux_hidden_state must be true")
    inner, outer = nested.get(_LAYER_IDS), raw.get(_LAYER_IDS)
    ids, shift = (outer, 0) if outer is not None else (inner, 1)
    if ids is None:
        return default_layers(count)
    if not isinstance(ids, list) or len(ids) != FEATURES or not all(type(one) is int for one in ids):
        raise _error(_LAYER_IDS, f"must be a list of {FEATURES} layers, not {quoted(ids)}")
    if not all(0 <= one + shift <= count for one in ids):
        raise _error(_LAYER_IDS, f"{ids}: the target has {count} layers")
    return tuple(one + shift for one in ids)


def _integer(raw: Mapping[str, Any], name: str, default: int) -> int:
    value = raw.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise _error(name, f"must be an integer, not {quoted(value)}")
    return value


def _flag(raw: Mapping[str, Any], name: str = "norm_before_residual") -> bool:
    value = raw.get(name, False)
    if not isinstance(value, bool):
        raise _error(name, f"must be true or false, not {quoted(value)}")
    return value


def _error(name: str, message: str) -> ModelError:
    return ModelError(f"config.json: {name} {message}")
