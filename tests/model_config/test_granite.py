"""Granite 4.0: hybrids whose layers are all attention, and what is refused of them."""

from typing import Any

import pytest

from jaxinfer.errors import ModelError
from jaxinfer.model_config.registry import parse_config

from .uniform import kind_of

GRANITE_4_MICRO = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "attention_bias": False,
    "attention_multiplier": 0.015625,
    "embedding_multiplier": 12,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "init_method": "mup",
    "intermediate_size": 8192,
    "layer_types": ["attention"] * 40,
    "logits_scaling": 10,
    "mamba_conv_bias": True,
    "mamba_d_head": 64,
    "mamba_n_heads": 128,
    "max_position_embeddings": 131072,
    "model_type": "granitemoehybrid",
    "normalization_function": "rmsnorm",
    "num_attention_heads": 40,
    "num_experts_per_tok": 0,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "num_local_experts": 0,
    "position_embedding_type": "rope",
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "shared_intermediate_size": 8192,
    "tie_word_embeddings": True,
    "vocab_size": 100352,
}


def test_granite_4_micro() -> None:
    config = parse_config(GRANITE_4_MICRO)
    kind = kind_of(config)
    attention, mlp = kind.mixer, kind.mlp
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim, attention.scale) == (40, 8, 64, 0.015625)
    assert (mlp.size, kind.experts, kind.residual_scale) == (8192, None, 0.22)
    assert (config.embedding_scale, config.logits_scale, config.max_position_embeddings) == (12, 0.1, 131072)
    assert attention.rope is not None
    assert attention.rope.theta == 1e7


@pytest.mark.parametrize("value", ["nope", None])
def test_granite_4_may_know_no_positions(value: str | None) -> None:
    assert kind_of(parse_config({**GRANITE_4_MICRO, "position_embedding_type": value})).mixer.rope is None


def test_granite_4_by_the_other_name_of_its_layers() -> None:
    raw = {**GRANITE_4_MICRO, "layer_types": None, "layers_block_type": ["full_attention"] * 40}
    assert parse_config(raw) == parse_config(GRANITE_4_MICRO)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["mamba"] * 36 + ["attention"] * 4}, "layer_types has layers that keep a state"),
        ({"layers_block_type": ["linear_attention"] * 40}, "layers_block_type has layers that keep a state"),
        ({"layer_types": None}, "layer_types is missing: its layers keep a state then"),
        ({"layer_types": ["attention"]}, "layer_types must be 40 names out of attention, full_attention"),
        ({"layer_types": [["attention"]] * 40}, "layer_types must be 40 names"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type 'alibi' is not supported; supported are nope"),
        ({"normalization_function": "layernorm"}, "normalization_function 'layernorm' is not supported"),
        ({"shared_intermediate_size": 0}, "shared_intermediate_size must be at least 1, not 0"),
    ],
)
def test_granite_4_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        parse_config({**GRANITE_4_MICRO, **changes})
