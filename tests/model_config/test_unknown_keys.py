"""Keys of config.json that no reader reads: those that compute nothing pass, those that might compute are refused."""

import logging
import math
from typing import Any

import pytest

from jaxinfer.config_json import unknown_keys
from jaxinfer.config_json.unknown_keys import suggests_computation
from jaxinfer.errors import ModelError
from jaxinfer.model_config.registry import parse_config
from jaxinfer.model_config.rope_config import RopeConfig

from .config_json import LLAMA
from .uniform import kind_of

# What public config.json files hold beside the fields of their family, tried on a Llama. Each row: keys with a value.
SILENT: list[tuple[str, Any]] = [
    # False, 0 and what is empty say nothing, whatever they are called.
    *[(name, False) for name in (
        "use_mrope", "use_mtp", "attn_output_gate", "qk_layernorm", "use_qkv_bias", "multi_query", "scale_embedding",
        "attention_output_gate", "use_gemma_norm", "moe_shared_expert_overlap", "latent_moe_use_norm",
        "rope_interleave",
        "fp32_residual_connection", "mamba_proj_bias", "add_swa_attention_sink_bias", "use_double_wide_mlp",
        "log_scale", "enable_moe_block", "layer_norm_bias", "no_bias", "flash_attn", "fused_dense", "bf16",
        "use_bidirectional_attention", "deep_copy", "language_model_only", "quantized", "lora", "alibi",
    )],
    *[(name, 0) for name in (
        "num_nextn_predict_layers", "kv_lora_rank", "q_lora_rank", "num_kv_shared_layers", "shared_intermediate_size",
        "hidden_size_per_layer_input", "router_jitter_noise", "num_hash_layers", "attention_chunk_size", "n_special",
        "final_logit_softcapping", "first_k_dense_replace",
    )],
    *[(name, empty) for name in ("mlp_only_layers", "layers_block_type", "no_rope_layers") for empty in ([], {}, "")],
    # A factor of one multiplies by nothing.
    *[(name, 1.0) for name in (
        "embedding_multiplier", "residual_multiplier", "logits_scaling", "routed_scaling_factor",
        "attention_value_scale",
        "hc_mult", "rope_scaling_factor", "mup_scale",
    )],
    # Known: who wrote the file, training, and how others load it.
    ("max_sequence_length", 2048), ("internal_version", "20250101"), ("use_flash_attn", True),
    ("use_flash_attn", "auto"),
    ("use_flash_attention", True), ("finetuned_from", "base"), ("neftune_noise_alpha", 5), ("_commit_hash", "4e20de3"),
    ("_sliding_window_pattern", 4), ("num_logits_to_keep", 1), ("model_version", "5_2"),
    ("rescale_prenorm_residual", True),
    ("is_llama_config", True), ("unsloth_version", "2025.1"), ("pretraining_tp", 2), ("transformers_version", "5.23.0"),
    ("use_cache", True), ("torch_dtype", "bfloat16"), ("attention_dropout", 0.1), ("router_aux_loss_coef", 0.001),
    ("max_length", 20), ("tokenizer_class", "X"), ("transformers.js_config", {"dtype": "q4"}), ("auto_map", {"a": "b"}),
]  # fmt: skip
WARNED: list[tuple[str, Any]] = [
    *[(name, True) for name in (
        "use_flashattn", "flash_rotary", "bias_dropout_fusion", "fused_rmsnorm", "fuse_cross_entropy",
        "use_fused_rope", "seq_aux", "predict_special_tokens", "is_finetuned", 
        "bnb_loading", "trust_remote_code", "return_unused_kwargs", "residual_dropout_training",
    )],
    *[(name, 7) for name in (
        "image_token_id", "video_token_id", "vision_start_token_id", "image_token_index", "mm_tokens_per_image",
        "seq_length", "max_seq_len", "model_max_length", "ep_size", "n_ctx", "runner_max_sequence_length", "seed",
        "ignore_index", "type_vocab_size", "padded_vocab_size", "context_length", "boi_token_index", "training_steps",
        "num_labels_aux", "initializer_factor", 
    )],
    *[(name, "text") for name in (
        "license", "base_model", "author", "prompt_format", "chat_format", "dataset", "attn_impl", "moe_router_dtype",
        "mamba_ssm_dtype", "attn_implementation_internal", "model_name", "language", "creation_date", "tokenizer_name",
        "wandb_run", "init_method", "attn_dropout_type", "media_placeholder", "timm_version",
    )],
    ("aux_loss_alpha", 0.001), ("emb_dropout_prob", 0.1), ("attn_dropout_prob", 0.1), ("z_loss_weight", 1e-4),
    ("mergekit", {"method": "slerp"}), ("training_args", {"lr": 1e-5}), ("vision_config", {"depth": 2}),
]  # fmt: skip
REFUSED: list[tuple[str, Any]] = [
    *[(name, True) for name in (
        "use_mrope", "use_logn_attn", "use_dynamic_ntk", "alibi", "qk_layernorm", "attention_k_eq_v", "use_gemma_norm",
        "apply_residual_connection_post_layernorm", "use_alibi", "lm_head_bias", "add_qkv_bias", "enable_softmax1",
        "rope_interleave", "attn_output_gate", "use_hope_rope", "post_layer_norm", "layerwise_qk_norm", "use_conv_bias",
        "mla_use_nope_rope", "moe_renormalize", "scale_embedding", "add_full_attention_sink_bias", "apply_yarn",
        "original_rope", "multi_query_attention", "tie_block_weights", "useQkNorm", "rotary_half", "no_rope_layers",
    )],
    *[(name, 2) for name in (
        "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim", "num_experts", "n_routed_experts", "moe_top_k",
        "num_experts_per_tok", "sliding_window", "attention_chunk_size", "index_topk", "num_kv_shared_layers",
        "query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping", "logit_scale", "scale_depth",
        "scale_emb", "dim_model_base", "embedding_multiplier", "residual_multiplier", "attention_multiplier", "hc_mult",
        "swiglu_limit", "swiglu_alpha", "mamba_num_heads", "ssm_state_size", "conv_kernel", "partial_rotary_dim",
        "rotary_pct", "rope_ratio", "full_attention_interval", "linear_num_key_heads", "layer_norm_eps", "kv_channels",
        "head_size", "num_layers_shared", "norm_eps", "clip_qkv", "mup_width", "block_size_attn", "rotary_emb_base",
        "interleave_moe_layer_step", "mtp_num_hidden_layers", "compress_rope_theta", "attention_sink_len", "topk_group",
        "num_hash_layers", "rope_percent", "super_bits",
    )],
    *[(name, "other") for name in (
        "pe_type", "position_embedding_type", "activation_function", "mlp_type", "norm_type", "attention_type",
        "scoring_func_router", "hybrid_override_pattern", "qk_norm_type", "output_gate_type", "feed_forward_act",
        "moe_router_activation_func", "rope_type", "hidden_activation",
    )],
    ("attn_type_list", [1, 0]), ("compress_ratios", [4]), ("block_configs", [{"attention": {}}]), ("rotary",
    {"base": 1}),
    ("indexer_types", ["full"]), ("attn_config", {"clip": 6}), ("ffn_config", {"act": "x"}),
    ("mlp_layer_types", ["dense"]),
    # Of these false says something.
    ("is_causal", False), ("use_rope", False), ("use_gated_mlp", False),
]  # fmt: skip


def parse(architecture: str = "LlamaForCausalLM", ignored: tuple[str, ...] = (), **changes: Any) -> Any:
    return parse_config({**LLAMA, "architectures": [architecture], **changes}, ignored=ignored)


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    unknown_keys._warn_once.cache_clear()
    caplog.set_level(logging.WARNING, "jaxinfer")
    return caplog


@pytest.mark.parametrize(("name", "value"), SILENT)
def test_keys_that_say_nothing_pass(name: str, value: Any, warned: pytest.LogCaptureFixture) -> None:
    assert parse(**{name: value}) == parse()
    assert warned.messages == []


@pytest.mark.parametrize(("name", "value"), WARNED)
def test_unknown_keys_that_suggest_no_computation_are_a_warning(
    name: str, value: Any, warned: pytest.LogCaptureFixture
) -> None:
    assert parse(**{name: value}) == parse()
    assert warned.messages == [f"config.json: ignored, since nothing here knows them: {name}"]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_keys_that_suggest_computation_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ModelError, match=f"config.json: {name} is unknown, and might change what the model computes"):
        parse(**{name: value})


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_flag_lets_one_pass(name: str, value: Any) -> None:
    assert parse(ignored=(name,), **{name: value}) == parse()


def test_the_corpus_counts() -> None:
    assert (len(SILENT), len(WARNED), len(REFUSED)) == (82, 59, 104)


def test_keys_inside_objects_are_named_by_where_they_stand(warned: pytest.LogCaptureFixture) -> None:
    linear = {"type": "linear", "factor": 2.0}
    for ignored in ("alpha", "rope_scaling.alpha"):
        assert parse(ignored=(ignored,), rope_scaling={**linear, "alpha": 2}) == parse(rope_scaling=linear)
    assert parse(rope_scaling={**linear, "comment": "x"}) == parse(rope_scaling=linear)
    assert warned.messages == ["config.json: ignored, since nothing here knows them: rope_scaling.comment"]


def test_a_key_to_ignore_that_is_not_there_is_named(warned: pytest.LogCaptureFixture) -> None:
    parse(ignored=("alpah", "hidden_size"))
    assert warned.messages == ["config.json: ignore_config_keys: alpah, hidden_size: no unknown key is called so"]


def test_a_warning_quotes_little_of_a_file(warned: pytest.LogCaptureFixture) -> None:
    many: dict[str, Any] = {"A" * 100_000: 1, **{f"comment {i}": 1 for i in range(1000)}}
    parse(**many)
    (message,) = warned.messages
    assert len(message) < 1000
    assert message.endswith("comment 18, 981 more")


PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen2.5-0.5B": ("Qwen2ForCausalLM", {"use_mrope": False, "max_window_layers": 24, "use_sliding_window": False}),
    "huggyllama/llama-7b": ("LlamaForCausalLM", {"max_sequence_length": 2048}),
    "Llama with Qwen's fields": (
        "LlamaForCausalLM", {"max_window_layers": 28, "sliding_window": 4096, "use_sliding_window": False},
    ),
    "c4ai-command-r7b": ("Cohere2ForCausalLM", {"_sliding_window_pattern": 4, "cache_implementation": "hybrid"}),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_load(name: str) -> None:
    architecture, said = PUBLISHED[name]
    plain: dict[str, Any] = {"use_sliding_window": False} if "Qwen2" in architecture else {}
    assert parse(architecture, **said) == parse(architecture, **plain)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def test_attn_factor_multiplies_yarns_scale() -> None:
    """DeepSeek-R1-0528-Qwen3-8B's file, whose factor takes the scale back to 1, as in vLLM."""
    factor = 0.8782488562869419
    rope = kind_of(parse("Qwen3ForCausalLM", rope_scaling={**YARN, "attn_factor": factor})).mixer.rope
    assert rope is not None
    assert math.isclose(rope.attention_factor, (0.1 * math.log(4) + 1) * factor)
    assert math.isclose(rope.attention_factor, 1.0, rel_tol=1e-4)
    scaled = kind_of(parse(rope_scaling={**YARN, "attn_factor": 2.0, "apply_yarn_scaling": False})).mixer.rope
    assert isinstance(scaled, RopeConfig)
    assert scaled.attention_factor == 2.0
    with pytest.raises(ModelError, match="attn_factor is there beside attention_factor"):
        parse(rope_scaling={**YARN, "attn_factor": 2.0, "attention_factor": 1.0})


def test_finetuned_ropes_load() -> None:
    assert parse(rope_scaling={**YARN, "finetuned": True}) == parse(rope_scaling=YARN)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["LLaMAForCausalLM"], None),
        (["LlamaForCausalLM", "Other"], None),
        (["Other", "LlamaForCausalLM"], None),
        (["LlamaModel", "LLaMAForCausalLM"], None),
        ([], "llama"),
        (None, "llama"),
    ],
)
def test_several_old_and_no_names(names: list[str] | None, kind: str | None) -> None:
    assert parse_config({**LLAMA, "architectures": names, "model_type": kind}) == parse()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["BertModel", "Other"], "'BertModel' is not supported: it has an encoder"),
        ([1], "architectures must be a list of names, not"),
        ("LlamaForCausalLM", "architectures must be a list of names, not"),
        ([], "architectures is missing and model_type None is not one of"),
    ],
)
def test_names_that_are_refused(names: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_config({**LLAMA, "architectures": names})


@pytest.mark.parametrize(
    "name",
    [
        "scoring_func", "score_function", "normalize_before", "normalization", "normalization_type", "nonlinearity",
        "squared_relu", "use_gelu", "post_ln", "use_nope", "prefix_lm", "token_mixer", "use_delta_rule", "decay",
        "n_inner", "hidden_function",
    ],
)  # fmt: skip
def test_other_words_for_what_is_computed(name: str) -> None:
    assert suggests_computation(name)
