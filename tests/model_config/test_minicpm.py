"""config.json files of MiniCPM, dense and with experts."""

from typing import Any

import pytest

from jaxinfer.errors import ModelError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.mlp_kind import ExpertsKind, RouterKind
from jaxinfer.model_config.registry import parse_config

from .config_json import LLAMA
from .uniform import fields_of, kind_of

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}


def parse(**changes: Any) -> DecoderConfig:
    return parse_config({**LLAMA, "architectures": ["MiniCPMForCausalLM"], **changes})


def test_multipliers():
    config = parse(scale_emb=12, scale_depth=1.4, dim_model_base=16)
    assert (config.embedding_scale, config.logits_scale) == (12.0, 0.25)  # 16 / 64
    assert kind_of(config).residual_scale == pytest.approx(0.7)  # 1.4 / sqrt(4)
    absent = parse()
    assert (absent.embedding_scale, absent.logits_scale, kind_of(absent).residual_scale) == (1.0, 1 / 64, 0.5)


def test_embedding_is_tied_where_the_file_does_not_say():
    assert parse().tie_word_embeddings
    assert not parse(tie_word_embeddings=False).tie_word_embeddings


def test_biases_of_attention():
    fields = fields_of(parse(attention_bias=True))
    assert (fields["qkv_bias"], fields["out_bias"]) == (True, True)


def test_experts_are_as_large_as_the_mlp():
    assert kind_of(parse()).experts is None
    assert kind_of(parse(num_experts=0)).experts is None
    assert kind_of(parse(**EXPERTS)).experts == ExpertsKind(8, 2, 128, RouterKind(normalise=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale_emb": "12"}, "config.json: scale_emb must be a number, not '12'"),
        ({"scale_emb": 0}, "scale_emb must be above 0, not 0.0"),
        ({"scale_depth": -1.4}, "scale_depth must be above 0, not -1.4"),
        ({"dim_model_base": 0}, "dim_model_base must be above 0, not 0.0"),
        ({"attention_bias": "no"}, "attention_bias must be true or false"),
        ({"num_experts": 8}, "num_experts_per_tok is missing"),
        ({"num_experts": "8"}, "num_experts must be an integer"),
        ({"num_experts_per_tok": 2}, "num_experts_per_tok 2 is not supported; only 0 is"),
        ({**EXPERTS, "num_experts_per_tok": 9}, "of 8 experts 9 cannot be chosen"),
        ({"pe_type": "ALIBI"}, "pe_type is unknown"),
    ],
)
def test_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ModelError, match=message):
        parse(**changes)
