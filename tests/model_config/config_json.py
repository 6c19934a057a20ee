"""The config.json of a small Llama, as a dict."""

from typing import Any

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}

SAME = [{"attention_bias": False}, {"mlp_bias": False}, {"layer_types": ["full_attention"] * 4}]
"""Fields that say of it what is so anyway."""
