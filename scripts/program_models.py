"""Models by the fields of their config.json from which step programs follow."""

from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

from jaxinfer.build.declared import DeclaredModel
from jaxinfer.config import CacheConfig, EngineConfig, KVCacheDType, ModelConfig, Quantization
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import parse_config


class Model(NamedTuple):
    """A model by the fields of its config.json that programs follow from.

    quantization, kv_cache_dtype: how it holds its weights, and keys and values.
    """

    name: str
    fields: dict[str, Any]
    quantization: Quantization = "none"
    kv_cache_dtype: KVCacheDType = "auto"

    def config(self, layers: int | None) -> DecoderConfig:
        """Return the config with `layers` layers, but at least one of every kind; None: all layers."""
        decoder = parse_config(_COMMON | self.fields)
        kinds = dict.fromkeys(decoder.layers)
        few = decoder.layers if layers is None else tuple(islice(cycle(kinds), max(layers, len(kinds))))
        load, cache = ModelConfig(quantization=self.quantization), CacheConfig(kv_cache_dtype=self.kv_cache_dtype)
        declared = DeclaredModel(Path(self.name), self.name, replace(decoder, layers=few))
        return declared.held(EngineConfig(self.name, load, cache))

    @property
    def title(self) -> str:
        """Name in the table."""
        weights = self.name if self.quantization == "none" else f"{self.name} in {self.quantization}"
        return weights if self.kv_cache_dtype == "auto" else f"{weights}, KV in {self.kv_cache_dtype}"


_COMMON = {
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}

DENSE = (
    Model(
        "Qwen3-0.6B",
        {
            "architectures": ["Qwen3ForCausalLM"],
            "vocab_size": 151936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
    ),
    Model(
        "Llama-3.1-8B",
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
    ),
    Model(
        "Qwen2.5-0.5B",
        {
            "architectures": ["Qwen2ForCausalLM"],
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
)
GPT_OSS = Model(
    "gpt-oss-20b",
    {
        "architectures": ["GptOssForCausalLM"],
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "rope_theta": 150000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "max_position_embeddings": 131072,
    },
)
QWEN3_MOE = Model(
    "Qwen3-30B-A3B",
    {
        "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    },
)
GEMMA3 = Model(
    "Gemma-3-4B",
    {
        "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": 262208,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
)
QUANTISED = (
    *(Model(DENSE[1].name, DENSE[1].fields, quantization) for quantization in ("int8", "fp8", "int4")),
    *(Model(DENSE[1].name, DENSE[1].fields, kv_cache_dtype=codes) for codes in ("fp8", "int8")),
    Model(QWEN3_MOE.name, QWEN3_MOE.fields, "int4"),
)
"""Codes of each type, with a scale for a row and for 32 values; of experts too."""
ODD = Model(
    "Qwen2.5-7B",
    {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    },
    "int8",
)
"""Model of which each of eight devices has 2368 columns of a matrix, no whole tiles of a TPU; the matrix must lie by
rows all the same."""
FITTING = {"v5e": QUANTISED[:2]}
"""Models of which a target holds all layers beside `FITTING_SEQUENCES` of `FITTING_LENGTH` tokens."""
FITTING_SEQUENCES, FITTING_LENGTH = 24, 2048
FAMILIES = (GPT_OSS, QWEN3_MOE, GEMMA3)
"""Models that differ from a dense one with one kind of layer: experts, windows, sinks, heads of 64 and of 256."""
EXPERTS = tuple(
    Model(f"Qwen3-30B-A3B with {experts} experts", QWEN3_MOE.fields | {"num_experts": experts}) for experts in (8, 128)
)
"""A token chooses as many of either: they differ in what is not chosen alone."""
