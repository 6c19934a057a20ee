"""Random configurations of every family, of the size of tests/goldens: for scripts/random_parity.py.

A draw has what a file of the family may say: the width of heads, biases, windows, tied embeddings, experts, forms of
rotary embedding. What no model of a family has is not drawn. Sizes are small and odd.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from golden_families import Family

Fields = dict[str, Any]
T = TypeVar("T")

LENGTH = 64
"""Tokens of the longest text that every drawn model can compute."""


class Draw:
    """Random choices; the same for the same seed."""

    def __init__(self, seed: str):
        self._random = random.Random(seed)

    def one(self, *choices: T) -> T:
        return self._random.choice(choices)

    def number(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def real(self, low: float, high: float) -> float:
        return round(self._random.uniform(low, high), 2)

    def flag(self) -> bool:
        return self._random.random() < 0.5


def random_family(name: str, draw: Draw) -> Family:
    """A model of the class `name`, one of RANDOM."""
    return Family(name, RANDOM[name](draw), draw.one("float32", "float32", "bfloat16", "float16"))


def _sizes(draw: Draw, *, dim: bool = True, multiple: int = 2, grouped: bool = True) -> Fields:
    """dim: whether the family names the width of heads. multiple: of that width; what turns of a head is even.
    grouped: whether several heads may share one of keys and values."""
    kv_heads = draw.number(1, 4)
    heads = kv_heads * (draw.number(1, 4) if grouped else 1)
    head_dim = multiple * draw.number(2, max(3, 24 // multiple))
    sizes = {
        "vocab_size": draw.number(96, 160),
        "hidden_size": heads * (draw.number(max(2, 16 // heads), max(4, 64 // heads)) if dim else head_dim),
        "intermediate_size": draw.number(9, 100),
        "num_hidden_layers": draw.number(1, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads if grouped else heads,
    }
    return {**sizes, "head_dim": head_dim} if dim else sizes


def _head_dim(sizes: Fields) -> int:
    return sizes.get("head_dim") or sizes["hidden_size"] // sizes["num_attention_heads"]


def _rope(draw: Draw, turned: int, kinds: Sequence[str] = ("default", "linear", "llama3", "yarn")) -> Fields:
    """turned: channels of a head that turn."""
    kind = draw.one(*kinds)
    rope: Fields = {"rope_theta": draw.one(100.0, 10000.0, 500000.0), "rope_type": kind, **_ROPES[kind](draw, turned)}
    if kind == "dynamic":
        return {"rope_parameters": rope, "max_position_embeddings": LENGTH // 4}
    if kind == "longrope":
        # transformers takes the long factors for texts beyond the original context, and its first piece is of 9 tokens.
        return {"rope_parameters": rope, "original_max_position_embeddings": draw.number(4, 8)}
    return {"rope_parameters": rope}


def _llama3(draw: Draw, turned: int) -> Fields:
    return {
        "high_freq_factor": draw.real(2, 6),
        "low_freq_factor": 1.0,
        "factor": draw.real(2, 8),
        "original_max_position_embeddings": draw.number(16, 48),
    }


def _yarn(draw: Draw, turned: int) -> Fields:
    more = draw.one({}, {"truncate": False}, {"mscale": 1.3, "mscale_all_dim": 0.7}, {"attention_factor": 1.2})
    return {"factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": draw.one(4.0, 32.0), **more}


def _longrope(draw: Draw, turned: int) -> Fields:
    short, long = ([draw.real(low, high) for _ in range(turned // 2)] for low, high in ((1, 1.2), (1, 6)))
    return {"short_factor": short, "long_factor": long}


_ROPES: dict[str, Callable[[Draw, int], Fields]] = {
    "default": lambda draw, turned: {},
    "linear": lambda draw, turned: {"factor": draw.real(1.5, 6)},
    "dynamic": lambda draw, turned: {"factor": 4.0},
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def _turning(draw: Draw, kinds: Sequence[str] = ("default", "linear", "llama3", "yarn"), **how: Any) -> Fields:
    """Sizes, and a rotary embedding of all of each head."""
    sizes = _sizes(draw, **how)
    return {**sizes, **_rope(draw, _head_dim(sizes), kinds)}


def _turning_in_part(draw: Draw, share: float, **how: Any) -> Fields:
    sizes = _sizes(draw, **how)
    rope = {"rope_theta": draw.one(100.0, 10000.0), "rope_type": "default", "partial_rotary_factor": share}
    return {**sizes, "rope_parameters": rope}


def _window(draw: Draw) -> int:
    return draw.number(2, 24)


def _types(draw: Draw, layers: int) -> list[str]:
    return [draw.one("sliding_attention", "full_attention") for _ in range(layers)]


def _experts(draw: Draw, count: str, size: str) -> Fields:
    """count, size: what the family calls the number of experts and their width."""
    experts = draw.number(2, 7)
    return {count: experts, "num_experts_per_tok": draw.number(1, experts), size: draw.number(9, 40)}


def _tied(draw: Draw) -> Fields:
    return {"tie_word_embeddings": draw.flag()}


def _llama(draw: Draw) -> Fields:
    kinds = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
    biases = {"attention_bias": draw.flag(), "mlp_bias": draw.flag()}
    return {**_turning(draw, kinds), **biases, **_tied(draw), "hidden_act": draw.one("silu", "gelu", "relu")}


def _mistral(draw: Draw) -> Fields:
    return {**_turning(draw), "sliding_window": draw.one(None, _window(draw)), **_tied(draw)}


def _ministral3(draw: Draw) -> Fields:
    fields = _turning(draw, ("yarn",))
    fields["rope_parameters"]["llama_4_scaling_beta"] = draw.real(0, 0.5)
    return {**fields, "sliding_window": draw.one(None, _window(draw)), **_tied(draw)}


def _qwen_windows(draw: Draw, layers: int) -> Fields:
    return {
        "use_sliding_window": draw.flag(),
        "sliding_window": _window(draw),
        "max_window_layers": draw.number(0, layers),
    }


def _qwen2(draw: Draw) -> Fields:
    fields = _turning(draw, ("default", "yarn", "dynamic"), dim=False)
    return {**fields, **_qwen_windows(draw, fields["num_hidden_layers"]), **_tied(draw)}


def _qwen3(draw: Draw) -> Fields:
    fields = _turning(draw, ("default", "yarn", "dynamic"))
    windows = _qwen_windows(draw, fields["num_hidden_layers"])
    return {**fields, **windows, **_tied(draw), "attention_bias": draw.flag()}


def _qwen2_moe(draw: Draw) -> Fields:
    fields = _turning(draw, ("default", "yarn"), dim=False)
    layers = fields["num_hidden_layers"]
    return {
        **fields,
        **_experts(draw, "num_experts", "moe_intermediate_size"),
        **_qwen_windows(draw, layers),
        **_tied(draw),
        "shared_expert_intermediate_size": draw.number(9, 60),
        "norm_topk_prob": draw.flag(),
        "decoder_sparse_step": draw.number(1, 2),
        "mlp_only_layers": [i for i in range(layers) if draw.number(0, 3) == 0],
        "qkv_bias": draw.flag(),
    }


def _qwen3_moe(draw: Draw) -> Fields:
    fields = _turning(draw, ("default", "yarn"))
    return {
        **fields,
        **_experts(draw, "num_experts", "moe_intermediate_size"),
        **_tied(draw),
        "use_sliding_window": draw.flag(),
        "sliding_window": _window(draw),
        "norm_topk_prob": draw.flag(),
        "decoder_sparse_step": draw.number(1, 2),
        "mlp_only_layers": [i for i in range(fields["num_hidden_layers"]) if draw.number(0, 3) == 0],
        "attention_bias": draw.flag(),
    }


def _mixtral(draw: Draw) -> Fields:
    experts = _experts(draw, "num_local_experts", "intermediate_size")
    return {**_turning(draw), **experts, "sliding_window": draw.one(None, _window(draw)), **_tied(draw)}


def _gemma(draw: Draw) -> Fields:
    return {**_turning(draw, ("default",)), "tie_word_embeddings": True, "attention_bias": draw.flag()}


def _gemma2(draw: Draw) -> Fields:
    fields = _turning(draw, ("default",))
    return {
        **fields,
        "query_pre_attn_scalar": draw.number(4, 48),
        "sliding_window": _window(draw),
        "layer_types": _types(draw, fields["num_hidden_layers"]),
        "attn_logit_softcapping": draw.one(None, 2.0, 50.0),
        "final_logit_softcapping": draw.one(None, 6.0, 30.0),
        "tie_word_embeddings": True,
        "attention_bias": draw.flag(),
    }


def _two_ropes(draw: Draw, sizes: Fields, full: Sequence[str]) -> Fields:
    ropes = (_rope(draw, _head_dim(sizes), kinds)["rope_parameters"] for kinds in (("default",), full))
    types = _types(draw, sizes["num_hidden_layers"])
    names = dict(zip(("sliding_attention", "full_attention"), ropes, strict=True))
    return {"rope_parameters": names, "layer_types": types, "sliding_window": _window(draw)}


def _gemma3(draw: Draw) -> Fields:
    sizes = _sizes(draw)
    return {
        **sizes,
        **_two_ropes(draw, sizes, ("default", "linear")),
        "query_pre_attn_scalar": draw.number(4, 48),
        "tie_word_embeddings": True,
        "attention_bias": draw.flag(),
    }


def _gpt_oss(draw: Draw) -> Fields:
    fields = _turning(draw, ("yarn",))
    return {
        **fields,
        **_experts(draw, "num_local_experts", "intermediate_size"),
        "sliding_window": _window(draw),
        "layer_types": _types(draw, fields["num_hidden_layers"]),
        "swiglu_limit": draw.real(1, 7),
        "tie_word_embeddings": False,
    }


def _phi3(draw: Draw) -> Fields:
    share = draw.one(0.5, 0.75, 1.0)
    sizes = _sizes(draw, dim=False, multiple=8)
    fields = {**sizes, **_rope(draw, int(_head_dim(sizes) * share), ("default", "longrope"))}
    fields["rope_parameters"]["partial_rotary_factor"] = share
    return {**fields, "sliding_window": draw.one(None, _window(draw)), **_tied(draw)}


def _multipliers(draw: Draw) -> Fields:
    return {
        "embedding_multiplier": draw.real(0.5, 6),
        "residual_multiplier": draw.real(0.2, 1),
        "attention_multiplier": draw.real(0.05, 0.5),
        "logits_scaling": draw.real(0.5, 6),
        "attention_bias": draw.flag(),
        **_tied(draw),
    }


def _granite(draw: Draw) -> Fields:
    return {**_turning(draw, ("default",), dim=False), **_multipliers(draw), "mlp_bias": draw.flag()}


def _granite_moe(draw: Draw) -> Fields:
    experts = _experts(draw, "num_local_experts", "intermediate_size")
    return {**_turning(draw, ("default",), dim=False), **_multipliers(draw), **experts}


def _granite_hybrid(draw: Draw) -> Fields:
    fields = _turning(draw, ("default",), dim=False)
    none = {"num_local_experts": 0, "num_experts_per_tok": 0}
    experts = draw.one(none, _experts(draw, "num_local_experts", "intermediate_size"))
    return {
        **fields,
        **_multipliers(draw),
        **experts,
        "shared_intermediate_size": draw.number(9, 60),
        "position_embedding_type": draw.one("rope", "nope"),
        "layer_types": ["full_attention"] * fields["num_hidden_layers"],
        # Of Mamba layers that the models have not: transformers checks that these divide twice the width.
        "mamba_n_heads": 1,
        "mamba_d_head": 2 * fields["hidden_size"],
    }


def _olmo2(draw: Draw) -> Fields:
    return {**_turning(draw, ("default",), dim=False), "attention_bias": draw.flag(), **_tied(draw)}


def _olmo3(draw: Draw) -> Fields:
    sizes = _sizes(draw, dim=False)
    return {**sizes, **_two_ropes(draw, sizes, ("default", "yarn")), "attention_bias": draw.flag(), **_tied(draw)}


def _smollm3(draw: Draw) -> Fields:
    fields = _turning(draw, ("default", "yarn"), dim=False)
    turned = [draw.number(0, 1) for _ in range(fields["num_hidden_layers"])]
    biases = {"attention_bias": draw.flag(), "mlp_bias": draw.flag()}
    return {**fields, "no_rope_layers": turned, **biases, **_tied(draw)}


def _glm(draw: Draw) -> Fields:
    return {**_turning_in_part(draw, 0.5, multiple=4), "attention_bias": draw.flag(), **_tied(draw)}


def _glm4_moe(draw: Draw) -> Fields:
    fields, groups = _turning_in_part(draw, 0.5, multiple=4), draw.number(1, 3)
    experts, top = groups * draw.number(2, 3), draw.number(1, groups)
    return {
        **fields,
        **_tied(draw),
        "n_routed_experts": experts,
        "num_experts_per_tok": draw.number(1, experts // groups * top),
        "n_group": groups,
        "topk_group": top,
        "moe_intermediate_size": draw.number(9, 40),
        "n_shared_experts": draw.number(1, 2),
        "first_k_dense_replace": draw.number(0, fields["num_hidden_layers"] - 1),  # no model is without experts
        "routed_scaling_factor": draw.real(0.5, 2.5),
        "norm_topk_prob": draw.flag(),
        "attention_bias": draw.flag(),
        "use_qk_norm": draw.flag(),
    }


def _minimax_m2(draw: Draw) -> Fields:
    experts = _experts(draw, "num_local_experts", "intermediate_size")
    return {**_turning_in_part(draw, draw.one(0.5, 1.0), multiple=4), **experts, **_tied(draw)}


def _cohere(draw: Draw) -> Fields:
    more = {"use_qk_norm": draw.flag(), "attention_bias": draw.flag(), "logit_scale": draw.real(0.05, 1)}
    return {**_turning(draw, ("default",), dim=False), **more, "tie_word_embeddings": True}


def _cohere2(draw: Draw) -> Fields:
    fields = _turning(draw, ("default",))
    return {
        **fields,
        "sliding_window": _window(draw),
        "layer_types": _types(draw, fields["num_hidden_layers"]),
        "logit_scale": draw.real(0.05, 1),
        "attention_bias": draw.flag(),
        "tie_word_embeddings": True,
    }


def _seed_oss(draw: Draw) -> Fields:
    names = ("attention_bias", "attention_out_bias", "mlp_bias")
    return {**_turning(draw, ("default",)), **{name: draw.flag() for name in names}, **_tied(draw)}


def _starcoder2(draw: Draw) -> Fields:
    fields = _turning(draw, ("default",), dim=False)
    return {**fields, "sliding_window": draw.one(None, _window(draw)), "use_bias": draw.flag(), **_tied(draw)}


def _stablelm(draw: Draw) -> Fields:
    names = ("use_qkv_bias", "use_parallel_residual", "qk_layernorm")
    fields = _turning_in_part(draw, draw.one(0.25, 0.5), dim=False, multiple=8)
    return {**fields, **{name: draw.flag() for name in names}, **_tied(draw)}


def _gpt2(draw: Draw) -> Fields:
    """Nothing turns, so that heads may be of odd width."""
    sizes = _sizes(draw, dim=False, grouped=False, multiple=1)
    inner = {"n_inner": sizes["intermediate_size"], "intermediate_size": None, "num_key_value_heads": None}
    return {**sizes, **inner, "activation_function": draw.one("gelu_new", "gelu", "relu"), **_tied(draw)}


def _internlm(draw: Draw) -> Fields:
    sizes = _sizes(draw, dim=False, grouped=False)
    rotary = {"base": draw.one(5000, 10000), "type": draw.one("dynamic", "origin")}
    return {**sizes, "bias": draw.flag(), "rotary": rotary, "num_key_value_heads": None, **_tied(draw)}


def _old_rope(draw: Draw) -> Fields:
    return draw.one({}, {"max_position_embeddings": 16, "rope_scaling": {"type": "dynamic", "factor": 4.0}})


def _internlm2(draw: Draw) -> Fields:
    more = {"bias": draw.flag(), "rope_theta": draw.one(10000, 1000000), **_old_rope(draw)}
    return {**_sizes(draw, dim=False), **more, **_tied(draw)}


def _minicpm(draw: Draw) -> Fields:
    experts = {"num_experts": 5, "num_experts_per_tok": draw.number(1, 5)}
    scales = {"scale_emb": draw.number(1, 12), "scale_depth": draw.real(0.5, 2), "dim_model_base": draw.number(4, 32)}
    fields = {**_sizes(draw, dim=False), **scales, **_old_rope(draw), **draw.one({}, experts), **_tied(draw)}
    return {**fields, "attention_bias": draw.flag()}


def _deepseek(draw: Draw) -> Fields:
    sizes = _sizes(draw, dim=False)
    return {
        **sizes,
        **_old_rope(draw),
        **_experts(draw, "n_routed_experts", "moe_intermediate_size"),
        **_tied(draw),
        "n_shared_experts": draw.one(None, 1, 2),
        "first_k_dense_replace": draw.number(0, sizes["num_hidden_layers"]),
        "moe_layer_freq": draw.number(1, 2),
        "norm_topk_prob": draw.flag(),
        "scoring_func": "softmax",
        "attention_bias": draw.flag(),
    }


RANDOM: dict[str, Callable[[Draw], Fields]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Ministral3ForCausalLM": _ministral3,
    "MixtralForCausalLM": _mixtral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen2MoeForCausalLM": _qwen2_moe,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "GemmaForCausalLM": _gemma,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "GptOssForCausalLM": _gpt_oss,
    "Phi3ForCausalLM": _phi3,
    "GraniteForCausalLM": _granite,
    "GraniteMoeForCausalLM": _granite_moe,
    "GraniteMoeHybridForCausalLM": _granite_hybrid,
    "Olmo2ForCausalLM": _olmo2,
    "Olmo3ForCausalLM": _olmo3,
    "SmolLM3ForCausalLM": _smollm3,
    "GlmForCausalLM": _glm,
    "Glm4ForCausalLM": _glm,
    "Glm4MoeForCausalLM": _glm4_moe,
    "MiniMaxM2ForCausalLM": _minimax_m2,
    "CohereForCausalLM": _cohere,
    "Cohere2ForCausalLM": _cohere2,
    "SeedOssForCausalLM": _seed_oss,
    "Starcoder2ForCausalLM": _starcoder2,
    "StableLmForCausalLM": _stablelm,
    "GPT2LMHeadModel": _gpt2,
    "InternLMForCausalLM": _internlm,
    "InternLM2ForCausalLM": _internlm2,
    "MiniCPMForCausalLM": _minicpm,
    "DeepseekForCausalLM": _deepseek,
}
"""Functions that draw a config of each family, by its class in transformers or in numpy_decoder.py."""
