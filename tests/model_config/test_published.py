"""Fields of published config.json files that no other file of their family has."""

from typing import Any

import pytest

from jaxinfer.errors import ModelError
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
        rope = kind_of(parse("MixtralForCausalLM", **declared)).mixer.rope
        assert rope is not None
        assert rope.theta == theta


@pytest.mark.parametrize(
    ("architecture", "kv_heads", "kind", "theta"),
    [
        ("CohereForCausalLM", 64, "default", 5e5),
        ("GptOssForCausalLM", 8, "yarn", 150000.0),
        ("Ministral3ForCausalLM", 8, "yarn", 1e6),
        ("MistralForCausalLM", 8, "default", 1e4),
        ("SmolLM3ForCausalLM", 4, "default", 2e6),
        ("Starcoder2ForCausalLM", 2, "default", 1e4),
    ],
)
def test_what_a_family_means_by_saying_nothing(architecture: str, kv_heads: int, kind: str, theta: float) -> None:
    """As transformers' classes do (test_defaults.py compares all of them); null is as many KV heads as heads."""
    sparse = {"num_local_experts": 4} if architecture == "GptOssForCausalLM" else {}
    raw = {**LLAMA, **sparse, "architectures": [architecture], "num_attention_heads": 64, "head_dim": 64}
    del raw["num_key_value_heads"], raw["rms_norm_eps"]
    attention = parse_config(raw).layers[0].mixer
    assert attention.rope is not None
    assert (attention.num_kv_heads, attention.rope.kind, attention.rope.theta) == (kv_heads, kind, theta)
    assert parse_config({**raw, "num_key_value_heads": None}).layers[0].mixer.num_kv_heads == 64


@pytest.mark.parametrize("architecture", ["GptOssForCausalLM", "MixtralForCausalLM", "SmolLM3ForCausalLM"])
def test_rope_parameters_without_a_base_have_the_familys(architecture: str) -> None:
    sparse = {} if architecture == "SmolLM3ForCausalLM" else {"num_local_experts": 4}
    linear = {"rope_type": "linear", "factor": 2.0}
    whole = parse(architecture, **sparse, rope_scaling=linear)
    rope = whole.layers[0].mixer.rope
    assert rope is not None
    assert rope.theta != 1e4
    assert parse(architecture, **sparse, rope_parameters=linear) == whole


@pytest.mark.parametrize("architecture", ["Gemma2ForCausalLM", "Gemma3ForCausalLM", "Olmo3ForCausalLM"])
def test_layers_with_a_window_must_have_one(architecture: str) -> None:
    assert parse(architecture).layers[0].mixer.window == 4096
    with pytest.raises(ModelError, match="layer_types has sliding_attention, but no sliding_window is set"):
        parse(architecture, sliding_window=None)


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
    attention = kind_of(config).mixer
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim, attention.window) == (32, 8, 128, None)
    assert (kind_of(config).mlp.size, config.num_layers, config.eos_token_ids) == (14336, 40, (2,))
    assert of_text("Mistral3ForConditionalGeneration", text) == config


def test_a_head_is_tied_where_either_part_says_so() -> None:
    for outer, inner, tied in (False, True, True), (True, False, True), (False, False, False), (None, True, True):
        text = {**LLAMA, "architectures": None, "model_type": "llama", "tie_word_embeddings": inner}
        config = of_text("LlavaForConditionalGeneration", text, tie_word_embeddings=outer)
        assert config.tie_word_embeddings == tied
