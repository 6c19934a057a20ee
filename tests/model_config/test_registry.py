"""config.json to DecoderConfig: real files, older and newer names, and what is refused."""

import json
from typing import Any

import pytest

from jaxinfer.errors import ModelError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import KVKind, NormKind
from jaxinfer.model_config.registry import parse_config
from jaxinfer.model_config.rope_config import RopeConfig
from tests.material import material
from tests.models.goldens import GOLDENS

from .config_json import LLAMA, SAME
from .uniform import fields_of, kind_of, windows_of

LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}

# What the models' own cards and papers say.
REAL = {
    "llama2_70b": {"num_heads": 64, "num_kv_heads": 8, "num_layers": 80, "head_dim": 128},
    "llama3_1_8b": {"rope": RopeConfig("llama3", 5e5, 8.0, 1.0, 4.0, 8192), "eos_token_ids": (128001, 128008, 128009)},
    "llama3_2_1b": {
        "tie_word_embeddings": True,
        "head_dim": 64,
        "rope": RopeConfig("llama3", 5e5, 32.0, 1.0, 4.0, 8192),
    },
    "llama3.1-8b.shapes": {"rope": RopeConfig("llama3", 5e5, 8.0, 1.0, 4.0, 8192), "num_layers": 32},
    "mistral_7b": {"windows": (4096,) * 32, "size": 14336},
    "mistral_7b_v03": {"windows": (None,) * 32, "rope": RopeConfig(theta=1e6)},
    "qwen2_7b": {"qkv_bias": True, "out_bias": False, "windows": (None,) * 28, "num_kv_heads": 4},
    "qwen3_0.6b": {"qk_norm": NormKind(), "head_dim": 128, "hidden_size": 1024, "qkv_bias": False},
    "qwen3-32b.shapes": {"qk_norm": NormKind(), "num_heads": 64, "rope": RopeConfig(theta=1e6)},
    "smollm2_135m": {"num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "rope": RopeConfig(theta=1e5)},
}


def rope_of(config: DecoderConfig) -> RopeConfig:
    rope = kind_of(config).mixer.rope
    assert rope is not None
    return rope


def parse(architecture: str = "LlamaForCausalLM", **changes: Any) -> DecoderConfig:
    return parse_config({**LLAMA, "architectures": [architecture], **changes})


@pytest.mark.parametrize("name", REAL)
def test_real_models(name: str):
    config = parse_config(json.loads(material("configs", f"{name}.json").read_text()))
    assert {field: fields_of(config)[field] for field in REAL[name]} == REAL[name]


def test_older_and_newer_names_mean_the_same():
    older = parse(rope_theta=5e5, rope_scaling=LLAMA3_ROPE, torch_dtype="bfloat16")
    newer = parse(rope_parameters={**LLAMA3_ROPE, "rope_theta": 5e5}, dtype="bfloat16")
    assert older == newer
    linear = {"type": "linear", "factor": 2.0}
    assert rope_of(parse(rope_scaling=linear)) == RopeConfig("linear", 10000.0, 2.0)
    assert rope_of(parse(rope_scaling={**linear, "rope_type": "linear"})) == RopeConfig("linear", 10000.0, 2.0)
    both = parse(rope_scaling=linear, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2})
    assert both == parse(rope_scaling=linear)


def test_yarn_and_dynamic():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    config = parse(rope_scaling=yarn)
    rope = rope_of(config)
    assert rope == rope_of(parse(rope_parameters={**yarn, "rope_theta": 1e4}))
    assert (rope.kind, rope.factor, rope.original_max_position_embeddings) == ("yarn", 4.0, 128)
    assert config.max_position_embeddings == 512  # what 128 tokens are stretched to, though 256 are declared
    assert parse(rope_scaling={**yarn, "factor": 2}).max_position_embeddings == 256
    assert rope_of(parse(rope_scaling={**yarn, "factor": None})).factor == 2.0  # 256 / 128
    assert rope_of(parse(rope_scaling={"type": "yarn", "factor": 2})).original_max_position_embeddings == 256
    assert rope_of(parse(rope_scaling={**yarn, "attention_factor": 1.5})).attention_factor == 1.5
    scaled = parse(rope_scaling={"type": "dynamic", "factor": 2.5})
    assert rope_of(scaled) == RopeConfig("dynamic", 10000.0, 2.5, original_max_position_embeddings=256)
    assert scaled.max_position_embeddings == 640


def test_longrope_chooses_its_factors_by_the_longest_context():
    config = parse(rope_scaling=LONGROPE, original_max_position_embeddings=64)
    rope = rope_of(config)
    assert (rope.kind, rope.original_max_position_embeddings, rope.factor) == ("longrope", 64, 4.0)
    assert (rope.short_factor, rope.long_factor) == ((1.0,) * 8, (4.0,) * 8)
    assert config.max_position_embeddings == 256
    assert rope.stretched
    assert config.at_context(65) == config
    assert not rope_of(config.at_context(64)).stretched
    assert not rope_of(parse(rope_scaling=LONGROPE)).stretched
    assert parse().at_context(10**6) == parse()


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn", "factor": 4.0},
        {key: value for key, value in LLAMA3_ROPE.items() if key != "original_max_position_embeddings"},
        LONGROPE,
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.0},
    ],
)
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_the_original_context_may_stand_outside(scaling: dict[str, Any], name: str):
    original: dict[str, Any] = {"original_max_position_embeddings": 64}
    inside: dict[str, Any] = {name: {**scaling, **original}}
    outside: dict[str, Any] = {name: scaling, **original}
    assert parse(**outside) == parse(**inside) == parse(**inside, **original)
    assert parse(**original) == parse()  # Phi-3-mini-4k has it beside no scaling at all


@pytest.mark.parametrize("architecture", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_fields_that_say_what_is_so_anyway(architecture: str):
    """transformers gives the same logits with them and without (tests/models/test_parity.py)."""
    plain = parse(f"{architecture}ForCausalLM", sliding_window=None)
    for same in SAME:
        assert parse(f"{architecture}ForCausalLM", sliding_window=None, **same) == plain, same
    raw = {**LLAMA, "architectures": [f"{architecture}ForCausalLM"]}
    del raw["hidden_act"], raw["rms_norm_eps"]
    defaults = parse_config(raw)
    assert (kind_of(defaults).mlp.activation, kind_of(defaults).norm.eps, defaults.norm.eps) == ("silu", 1e-6, 1e-6)


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_no_layer_slides_without_use_sliding_window(architecture: str):
    types = ["sliding_attention", "full_attention"] * 2
    config = parse(architecture, use_sliding_window=False, sliding_window=32, layer_types=types)
    assert windows_of(config) == (None,) * 4
    with pytest.raises(ModelError, match="layer_types must be 4 names"):
        parse(architecture, use_sliding_window=False, layer_types=types[1:])


def test_biases_that_a_family_does_not_have_are_refused():
    with pytest.raises(ModelError, match="attention_bias True is not supported"):
        parse("MistralForCausalLM", attention_bias=True)
    with pytest.raises(ModelError, match="mlp_bias True is not supported"):
        parse("Qwen2ForCausalLM", mlp_bias=True)


def test_qwen_windows():
    options = {"sliding_window": 32, "max_window_layers": 3}
    assert windows_of(parse("Qwen2ForCausalLM", use_sliding_window=True, **options)) == (None, None, None, 32)
    assert windows_of(parse("Qwen2ForCausalLM", use_sliding_window=False, **options)) == (None,) * 4
    types = ["sliding_attention", "full_attention"] * 2
    config = parse("Qwen3ForCausalLM", use_sliding_window=True, layer_types=types, **options)
    assert windows_of(config) == (32, None, 32, None)
    assert [tuple(group) for group in config.kv_groups] == [
        (KVKind(2, 128, 128, window=32), (0, 2)),
        (KVKind(2, 128, 128), (1, 3)),
    ]


def test_mistral_window_absent_is_4096_and_null_is_none():
    assert windows_of(parse("MistralForCausalLM")) == (4096,) * 4
    assert windows_of(parse("MistralForCausalLM", sliding_window=None)) == (None,) * 4


def test_several_end_of_sequence_ids():
    assert parse(eos_token_id=[1, 2]).eos_token_ids == (1, 2)
    assert parse(eos_token_id=2, bos_token_id=None).eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["RwkvForCausalLM"]},
            "architectures: 'RwkvForCausalLM' is not supported",
        ),
        ({"architectures": ["LlamaForCausalLM", 5]}, "architectures must be a list of names"),
        ({"architectures": None, "model_type": "rwkv5"}, "model_type 'rwkv5' is not one of"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling: short_factor is missing"),
        ({"rope_scaling": {**LONGROPE, "long_factor": 4}}, "long_factor must be a list of numbers, not 4"),
        ({"rope_scaling": {**LONGROPE, "long_factor": [4.0] * 7}}, "long_factor must have 8 numbers, head_dim / 2"),
        ({"rope_scaling": {**LONGROPE, "short_factor": [0] * 8}}, "short_factor must hold numbers above 0"),
        ({"rope_scaling": {**LONGROPE, "short_mscale": 1.2}}, "short_mscale is unknown"),
        ({"rope_scaling": LONGROPE, "original_max_position_embeddings": 1}, "must be at least 2, not 1"),
        (
            {"rope_scaling": LLAMA3_ROPE, "original_max_position_embeddings": 64},
            "8192 contradicts original_max_position_embeddings outside of rope_scaling, 64",
        ),
        ({"original_max_position_embeddings": "64"}, "original_max_position_embeddings must be an integer"),
        ({"rope_parameters": {"type": "ntk", "factor": 4.0}}, "rope_parameters: type 'ntk' is not supported"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": {"type": "yarn", "factor": 0.5}}, "rope factor must be at least 1 for yarn"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 0}}, "rope beta_fast must be above 0"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "beta_slow": 40}}, "beta_fast must be at least beta_slow"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "attention_factor": 0}}, "attention_factor must be above 0"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "truncate": 1}}, "truncate must be true or false"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2, "extrapolation_factor": 0.5}},
            "extrapolation_factor 0.5 is not",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 2}, "rope_theta": 1}, "rope_theta must be above 1"),
        ({"rope_scaling": {"type": "dynamic"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 3.0}}, "alpha is unknown"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2, "original_max_position_embeddings": 64}}, "only 256 is"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}, "head_dim": 2}, "head_dim must be at least 4"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "truncate": True}}, "truncate is unknown"),
        ({"rope_scaling": {**LLAMA3_ROPE, "beta_fast": 32}}, "beta_fast is unknown"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
            "rope_scaling contradicts rope_parameters",
        ),
        ({"rope_parameters": {"rope_theta": 1e6}, "rope_theta": 1e4}, "rope_theta 1000000.0 contradicts rope_theta"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor must be above 0"),
        ({"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2}}, "contradicts rope_type"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "attn_factor": 3.0}}, "attn_factor is unknown"),
        ({"rope_scaling": [1]}, "rope_scaling must be an object"),
        ({"hidden_act": "relu2"}, "hidden_act 'relu2' is not supported; supported are gelu"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quant_method None is not supported"),
        ({"logit_scale": 0.1}, "logit_scale is unknown, and might change"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be an integer"),
        ({"hidden_size": 66}, "hidden_size 66 is not a multiple of num_attention_heads"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be an integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
        ({"num_key_value_heads": 3}, "num_attention_heads must be a multiple of num_key_value_heads"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps must be a number"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id or a list"),
        ({"head_dim": 15}, "head_dim must be even"),
    ],
)
def test_refused(changes: dict, message: str):
    with pytest.raises(ModelError, match=message):
        parse_config({**LLAMA, **changes})


@pytest.mark.parametrize("changes", [{"layer_types": ["chunked_attention"] * 4}, {"layer_types": ["full_attention"]}])
def test_layer_types_refused(changes: dict):
    with pytest.raises(ModelError, match="layer_types must be 4 names out of full_attention"):
        parse("Qwen3ForCausalLM", **changes)
    with pytest.raises(ModelError, match="no sliding_window is set"):
        parse("MistralForCausalLM", sliding_window=None, layer_types=["sliding_attention"] * 4)
    with pytest.raises(ModelError, match="no sliding_window is set"):
        parse("LlamaForCausalLM", layer_types=["sliding_attention"] * 4)


def test_llama_does_not_know_windows():
    with pytest.raises(ModelError, match="sliding_window is unknown"):
        parse(sliding_window=128)


def test_code_beside_a_known_architecture_is_left_alone():
    assert parse(auto_map={"AutoModel": "x.Y"}) == parse()


def test_gemma3_has_no_soft_cap_of_scores() -> None:
    raw = json.loads((GOLDENS / "gemma3" / "config.json").read_text())
    assert parse_config(raw).layers[0].mixer.soft_cap is None
    with pytest.raises(ModelError, match="attn_logit_softcapping must be null"):
        parse_config({**raw, "attn_logit_softcapping": 50.0})
