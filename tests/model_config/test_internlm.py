"""config.json files of InternLM 1 to 2.5."""

from typing import Any

import pytest

from jaxinfer.errors import ModelError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import ARCHITECTURES, parse_config
from jaxinfer.model_config.rope_config import RopeConfig

from .config_json import LLAMA
from .uniform import fields_of, kind_of

BOTH = ["InternLMForCausalLM", "InternLM2ForCausalLM"]


def parse(architecture: str, **changes: Any) -> DecoderConfig:
    return parse_config({**LLAMA, "architectures": [architecture], **changes})


@pytest.mark.parametrize("architecture", BOTH)
def test_biases_of_attention(architecture: str):
    for bias, changes in ((True, {}), (True, {"bias": True}), (False, {"bias": False})):
        fields = fields_of(parse(architecture, **changes))
        assert (fields["qkv_bias"], fields["out_bias"], kind_of(parse(architecture)).mlp.bias) == (bias, bias, False)


def test_model_types_without_architectures():
    for architecture in BOTH:
        (kind,) = ARCHITECTURES[architecture].model_types
        assert parse_config({**LLAMA, "architectures": None, "model_type": kind}) == parse(architecture)


@pytest.mark.parametrize("architecture", BOTH)
def test_dynamic_rope(architecture: str):
    config = parse(architecture, rope_scaling={"type": "dynamic", "factor": 2.0})
    assert kind_of(config).mixer.rope == RopeConfig("dynamic", 1e4, 2.0, original_max_position_embeddings=256)
    assert config.max_position_embeddings == 512


def test_rotary_of_internlm_1_offers_no_more_than_the_declared_context():
    for rotary in (
        {"base": 5000, "type": "origin"},
        {"base": 5000, "type": "dynamic"},
        {"base": 5000.0, "type": "dynamic", "scaling_factor": 4.0},
    ):
        config = parse("InternLMForCausalLM", rotary=rotary)
        assert kind_of(config).mixer.rope == RopeConfig(theta=5000.0)
        assert config.max_position_embeddings == 256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bias": 1}, "config.json: bias must be true or false, not 1"),
        ({"rotary": "dynamic"}, "config.json: rotary must be an object"),
        ({"rotary": {"type": "dynamic"}}, "config.json: rotary: base is missing"),
        ({"rotary": {"base": 1e4, "type": "yarn"}}, "rotary: type 'yarn' is not supported; only 'origin' or 'dynamic'"),
        ({"rotary": {"base": 1e4, "scaling_factor": "2"}}, "rotary: scaling_factor must be a number"),
        ({"rotary": {"base": 1e4, "alpha": 2}}, "rotary: alpha is unknown"),
        ({"rotary": {"base": 1e4}, "rope_theta": 1e6}, "rotary contradicts rope_theta or rope_scaling"),
        (
            {"rotary": {"base": 1e4}, "rope_scaling": {"type": "dynamic", "factor": 2}},
            "rotary contradicts rope_theta or rope_scaling",
        ),
        ({"attention_bias": True}, "attention_bias is unknown"),
    ],
)
def test_refused_of_internlm_1(changes: dict[str, Any], message: str):
    with pytest.raises(ModelError, match=message):
        parse("InternLMForCausalLM", **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bias": "yes"}, "config.json: bias must be true or false, not 'yes'"),
        ({"rotary": {"base": 1e4, "type": "dynamic"}}, "rotary is unknown"),
        ({"rope_scaling": {"type": "dynamic"}}, "rope_scaling: factor is missing"),
        ({"num_key_value_heads": 3}, "num_attention_heads must be a multiple of num_key_value_heads"),
    ],
)
def test_refused_of_internlm_2(changes: dict[str, Any], message: str):
    with pytest.raises(ModelError, match=message):
        parse("InternLM2ForCausalLM", **changes)
