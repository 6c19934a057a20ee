"""Fields of published config.json files that no other file of their family has."""

from typing import Any

import pytest

from jaxinfer.errors import ModelError, UnknownArchitectureError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import parse_config

from .config_json import LLAMA
from .uniform import kind_of


def parse(architecture: str, **changes: Any) -> DecoderConfig:
    return parse_config({**LLAMA, "architectures": [architecture], **changes})


def test_command_r_declares_its_context_as_model_max_length() -> None:
    assert parse("CohereForCausalLM", model_max_length=131072).max_position_embeddings == 131072
    assert parse("CohereForCausalLM", model_max_length=8).max_position_embeddings == 256
    assert parse("CohereForCausalLM").max_position_embeddings == 256


@pytest.mark.parametrize("value", [False, True])
def test_how_command_r7b_was_sharded_in_training_does_not_matter(value: bool) -> None:
    assert parse("Cohere2ForCausalLM", use_parallel_embedding=value) == parse("Cohere2ForCausalLM")


EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SAID = {
    "SmolLM3ForCausalLM": {"max_window_layers": 28},
    "MiniMaxM2ForCausalLM": {
        "layernorm_full_attention_beta": 1.0,
        "layernorm_linear_attention_beta": 1.0,
        "layernorm_mlp_beta": 1.0,
        "mlp_intermediate_size": 8192,
        "shared_intermediate_size": 0,
        "shared_moe_mode": "sigmoid",
    },
    "Qwen3MoeForCausalLM": {"qkv_bias": False, "use_qk_norm": True, "shared_expert_intermediate_size": 0},
}
"""Of SmolLM3-3B, MiniMax-M2 and Qwen3-Coder-30B-A3B."""


@pytest.mark.parametrize("architecture", SAID)
def test_fields_that_change_nothing(architecture: str) -> None:
    base = LLAMA if architecture == "SmolLM3ForCausalLM" else {**LLAMA, **EXPERTS}
    if architecture == "MiniMaxM2ForCausalLM":
        base = {name: value for name, value in base.items() if name != "moe_intermediate_size"}
    base = {**base, "architectures": [architecture]}
    assert parse_config({**base, **SAID[architecture]}) == parse_config(base)


@pytest.mark.parametrize(
    ("architecture", "name", "value"),
    [
        ("MiniMaxM2ForCausalLM", "layernorm_mlp_beta", 2.0),
        ("MiniMaxM2ForCausalLM", "shared_intermediate_size", 64),
        ("Qwen3MoeForCausalLM", "qkv_bias", True),
        ("Qwen3MoeForCausalLM", "use_qk_norm", False),
        ("Qwen3MoeForCausalLM", "shared_expert_intermediate_size", 64),
    ],
)
def test_other_values_of_them_are_refused(architecture: str, name: str, value: Any) -> None:
    with pytest.raises(ModelError, match=name):
        parse(architecture, **EXPERTS, **{name: value})


def test_mixtral_turns_by_a_million_where_nothing_is_said() -> None:
    for declared, theta in ({}, 1e6), ({"rope_theta": 2e4}, 2e4), ({"rope_parameters": {"rope_theta": 3e4}}, 3e4):
        rope = kind_of(parse("MixtralForCausalLM", **declared)).attention.rope
        assert rope is not None
        assert rope.theta == theta


def test_leftovers_of_old_writers() -> None:
    """Of distilgpt2, gpt2-xl and fine-tuned Llamas."""
    left = {"_num_labels": 1, "gradient_checkpointing": False, "output_past": True, "_flash_attn_2_enabled": True}
    assert parse("LlamaForCausalLM", **left) == parse("LlamaForCausalLM")


def of_text(architecture: str, text: dict[str, Any], **outer: Any) -> DecoderConfig:
    return parse_config({"architectures": [architecture], "text_config": text, "vision_config": {}, **outer})


def test_a_sparse_mistral_in_another_model() -> None:
    """Pixtral 12B leaves out its heads, Mistral Small 3.1 its ends."""
    text = {
        "head_dim": 128,
        "hidden_size": 5120,
        "is_composition": True,
        "max_position_embeddings": 1024000,
        "model_type": "mistral",
        "num_hidden_layers": 40,
        "rope_theta": 1e9,
        "sliding_window": None,
        "vocab_size": 131072,
    }
    config = of_text("LlavaForConditionalGeneration", text)
    attention = kind_of(config).attention
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim, attention.window) == (32, 8, 128, None)
    assert (kind_of(config).mlp.size, config.num_layers, config.eos_token_ids) == (14336, 40, (2,))
    assert of_text("Mistral3ForConditionalGeneration", text) == config


def test_a_head_is_tied_where_either_part_says_so() -> None:
    for outer, inner, tied in (False, True, True), (True, False, True), (False, False, False), (None, True, True):
        text = {**LLAMA, "architectures": None, "model_type": "llama", "tie_word_embeddings": inner}
        config = of_text("LlavaForConditionalGeneration", text, tie_word_embeddings=outer)
        assert config.tie_word_embeddings == tied


def test_granite_4_without_mamba_layers_is_not_said_to_have_them() -> None:
    with pytest.raises(UnknownArchitectureError, match=r"those without .* are not supported yet"):
        parse("GraniteMoeHybridForCausalLM", layer_types=["attention"] * 4)
