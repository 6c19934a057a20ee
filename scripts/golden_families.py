"""The small random models of tests/goldens: for each its class, and what differs from SIZES."""

from typing import Any, NamedTuple


class Family(NamedTuple):
    """One model. name: of its class in transformers or numpy_decoder.DECODERS. fields: of its config. dtype: of the
    stored weights."""

    name: str
    fields: dict[str, Any]
    dtype: str = "float32"


SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.05, 1.1, 1.2],
    "long_factor": [1.2, 1.6, 3.0, 5.5],
}
_YARN_SCALES = {**_YARN, "mscale": 1.3, "mscale_all_dim": 0.7, "truncate": False}

_GEMMA3 = {
    "num_hidden_layers": 3,
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    },
}
_TOWER = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 16,
    "patch_size": 8,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

_MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.5,
}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 24}
# Of Mamba layers that the models have not: transformers checks them all the same.
_GRANITE_4 = {**_MULTIPLIERS, "layer_types": ["full_attention"] * 2, "mamba_n_heads": 8}
_LLAMA4_YARN = {**_YARN, "original_max_position_embeddings": 16, "factor": 8.0, "llama_4_scaling_beta": 0.4}
_DYNAMIC = {"max_position_embeddings": 16, "rope_scaling": {"type": "dynamic", "factor": 4.0}}
_MINICPM = {"scale_emb": 4, "scale_depth": 1.4, "dim_model_base": 8}
_DEEPSEEK = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "norm_topk_prob": False,
    "scoring_func": "softmax",
    "attention_bias": False,
}

# A family's seed is its place here: add new ones at the end.
FAMILIES: dict[str, Family] = {
    "llama2": Family("LlamaForCausalLM", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama3": Family(
        "LlamaForCausalLM", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True, "head_dim": 16}, "bfloat16"
    ),
    "llama_linear": Family(
        "LlamaForCausalLM",
        {
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
            "attention_bias": True,
            "mlp_bias": True,
            "hidden_act": "gelu",
        },
    ),
    "mistral": Family("MistralForCausalLM", {"sliding_window": 9, "num_key_value_heads": 1}, "float16"),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "qwen3": Family("Qwen3ForCausalLM", {"tie_word_embeddings": True, "head_dim": 24}),
    "qwen3_untied": Family("Qwen3ForCausalLM", {"head_dim": 8, "attention_bias": True}, "bfloat16"),
    "llama_dynamic": Family(
        "LlamaForCausalLM",
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
            "max_position_embeddings": 16,
        },
    ),
    "llama_yarn": Family("LlamaForCausalLM", {"rope_parameters": _YARN}),
    "qwen3_yarn": Family("Qwen3ForCausalLM", {"rope_parameters": _YARN_SCALES, "head_dim": 24}),
    # The prompt is longer than the original context: transformers, too, has the long factors from the first token on.
    "llama_longrope": Family("LlamaForCausalLM", {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 8}),
    "gemma": Family("GemmaForCausalLM", {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 7, "attn_logit_softcapping": 2.0},
        "bfloat16",
    ),
    "gemma3": Family("Gemma3ForCausalLM", {**_GEMMA3, "attention_bias": True}),
    "gemma3_vision": Family("Gemma3ForConditionalGeneration", {"text_config": _GEMMA3, "vision_config": _TOWER}),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 7,
            "swiglu_limit": 1.5,
            "rope_parameters": {**_YARN, "rope_theta": 150000.0, "truncate": False},
        },
        "bfloat16",
    ),
    "mixtral": Family("MixtralForCausalLM", {"num_local_experts": 4, "sliding_window": 9}, "bfloat16"),
    "qwen2_moe": Family(
        "Qwen2MoeForCausalLM",
        {**_EXPERTS, "shared_expert_intermediate_size": 40, "norm_topk_prob": False, "mlp_only_layers": [0]},
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM", {**_EXPERTS, "head_dim": 16, "norm_topk_prob": True, "tie_word_embeddings": True}
    ),
    "phi3": Family("Phi3ForCausalLM", {"sliding_window": 9, "num_key_value_heads": 4}, "bfloat16"),
    "phi4": Family(
        "Phi3ForCausalLM",
        {
            "rope_parameters": {
                **_LONGROPE,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.05, 1.1],
                "long_factor": [1.2, 1.6, 3.0],
            },
            "original_max_position_embeddings": 8,
            "tie_word_embeddings": True,
        },
    ),
    "granite": Family("GraniteForCausalLM", {**_MULTIPLIERS, "attention_bias": True, "tie_word_embeddings": True}),
    "granite_moe": Family("GraniteMoeForCausalLM", {**_MULTIPLIERS, **_LOCAL_EXPERTS}),
    "olmo2": Family("Olmo2ForCausalLM", {"num_key_value_heads": 4}),
    "olmo3": Family(
        "Olmo3ForCausalLM",
        {
            "num_hidden_layers": 3,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
                "full_attention": {**_YARN, "rope_theta": 500000.0},
            },
        },
        "bfloat16",
    ),
    "smollm3": Family("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}),
    "ministral3": Family("Ministral3ForCausalLM", {"head_dim": 16, "rope_parameters": _LLAMA4_YARN}, "bfloat16"),
    "mistral3_vision": Family(
        "Mistral3ForConditionalGeneration",
        {
            "text_config": {
                "model_type": "ministral3",
                "head_dim": 8,
                "tie_word_embeddings": True,
                "rope_parameters": _LLAMA4_YARN,
            },
            "vision_config": {**_TOWER, "model_type": "pixtral", "head_dim": 8},
        },
        "bfloat16",
    ),
    "glm": Family("GlmForCausalLM", {"head_dim": 16}),
    "glm4": Family("Glm4ForCausalLM", {"head_dim": 16}, "bfloat16"),
    "glm4_moe": Family(
        "Glm4MoeForCausalLM",
        {
            "head_dim": 16,
            "attention_bias": True,
            "use_qk_norm": True,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "n_group": 3,
            "topk_group": 2,
            "moe_intermediate_size": 24,
            "routed_scaling_factor": 1.5,
        },
        "bfloat16",
    ),
    "minimax_m2": Family(
        "MiniMaxM2ForCausalLM",
        {**_LOCAL_EXPERTS, "head_dim": 16, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        "bfloat16",
    ),
    "cohere": Family("CohereForCausalLM", {"use_qk_norm": True, "logit_scale": 0.25}),
    "cohere2": Family("Cohere2ForCausalLM", {"sliding_window": 7, "num_hidden_layers": 4}, "bfloat16"),
    "seed_oss": Family("SeedOssForCausalLM", {"head_dim": 16}),
    "starcoder2": Family("Starcoder2ForCausalLM", {"sliding_window": 9}),
    "stablelm": Family("StableLmForCausalLM", {"use_qkv_bias": True}),
    "stablelm_parallel": Family("StableLmForCausalLM", {"use_parallel_residual": True, "qk_layernorm": True}),
    "gpt2": Family("GPT2LMHeadModel", {"n_inner": 48, "intermediate_size": None, "num_key_value_heads": None}),
    "llava": Family(
        "LlavaForConditionalGeneration",
        {
            "text_config": {"model_type": "llama"},
            "vision_config": {**_TOWER, "model_type": "clip_vision_model", "projection_dim": 8},
            "vision_feature_layer": -1,
        },
    ),
    "internlm": Family(
        "InternLMForCausalLM", {"bias": True, "rotary": {"base": 5000, "type": "dynamic"}, "num_key_value_heads": None}
    ),
    "internlm2": Family("InternLM2ForCausalLM", {"bias": False, "rope_theta": 1000000}, "float16"),
    "internlm2_dynamic": Family(
        "InternLM2ForCausalLM", {**_DYNAMIC, "bias": True, "num_key_value_heads": 1, "tie_word_embeddings": True}
    ),
    "minicpm": Family("MiniCPMForCausalLM", {**_MINICPM, "tie_word_embeddings": True}),
    "minicpm_dynamic": Family("MiniCPMForCausalLM", {**_MINICPM, **_DYNAMIC, "attention_bias": True}, "float16"),
    "minicpm_moe": Family(
        "MiniCPMForCausalLM",
        {**_MINICPM, "tie_word_embeddings": True, "num_experts": 6, "num_experts_per_tok": 2},
        "float16",
    ),
    "deepseek_moe": Family("DeepseekForCausalLM", {**_DEEPSEEK, "n_shared_experts": 2}, "float16"),
    "deepseek_moe_freq": Family(
        "DeepseekForCausalLM",
        {
            **_DEEPSEEK,
            **_DYNAMIC,
            "moe_layer_freq": 2,
            "norm_topk_prob": True,
            "attention_bias": True,
            "num_key_value_heads": 2,
        },
        "float16",
    ),
    "granite_4": Family(
        "GraniteMoeHybridForCausalLM",
        {
            **_GRANITE_4,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 40,
            "position_embedding_type": "rope",
            "tie_word_embeddings": True,
        },
    ),
    "granite_4_moe": Family(
        "GraniteMoeHybridForCausalLM",
        {**_GRANITE_4, **_LOCAL_EXPERTS, "shared_intermediate_size": 40, "position_embedding_type": "nope"},
        "bfloat16",
    ),
}
