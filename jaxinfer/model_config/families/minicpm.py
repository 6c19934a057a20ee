"""MiniCPM 1 and 2, dense and with experts: Llama with multipliers on embedding, residual and logits."""

import math
from typing import Any

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.model_config.architecture import NUMPY_MODEL, Architecture
from jaxinfer.model_config.decoder import read_decoder, read_layer, read_layers
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.mlp_kind import ExpertsKind, RouterKind
from jaxinfer.model_config.tensor_names import TensorNames

_NAMES = TensorNames(expert_gate="w1", expert_up="w3", expert_down="w2")


def parse(config: ConfigReader) -> DecoderConfig:
    """`scale_depth` is spread over the layers; `dim_model_base` is the width for which logits need no scale."""
    config.default("tie_word_embeddings", True)
    bias, count = config.flag("attention_bias"), read_layers(config)
    layer = read_layer(
        config,
        attention={"qkv_bias": bias, "out_bias": bias},
        mlp=_read_experts(config),
        residual_scale=_positive(config, "scale_depth") / math.sqrt(count),
    )
    return read_decoder(
        config,
        (layer,) * count,
        names=_NAMES,
        embedding_scale=_positive(config, "scale_emb"),
        logits_scale=_positive(config, "dim_model_base") / config.integer("hidden_size"),
    )


def _read_experts(config: ConfigReader) -> dict[str, Any]:
    """MiniCPM-MoE has `num_experts`; each is as large as the MLP that it stands for."""
    count = config.integer("num_experts", 0)
    if count == 0:
        config.only("num_experts_per_tok", 0)
        return {}
    chosen, size = config.integer("num_experts_per_tok"), config.integer("intermediate_size")
    return {"experts": ExpertsKind(count, chosen, size, RouterKind(normalise=True))}


def _positive(config: ConfigReader, name: str) -> float:
    """A multiplier, 1 where it is absent."""
    value = config.number(name, 1.0)
    if not value > 0:
        raise config.error(name, f"must be above 0, not {value}")
    return value


ARCHITECTURES = {"MiniCPMForCausalLM": Architecture(parse, ("minicpm",), NUMPY_MODEL)}
