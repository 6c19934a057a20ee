"""config.json files of DeepSeek-MoE."""

from typing import Any

import pytest

from jaxinfer.errors import ModelError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.mlp_kind import ExpertsKind, RouterKind
from jaxinfer.model_config.registry import parse_config

from .config_json import LLAMA

EXPERTS = {"n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 2}


def parse(**changes: Any) -> DecoderConfig:
    return parse_config({**LLAMA, "architectures": ["DeepseekForCausalLM"], **EXPERTS, **changes})


def sparse_layers(config: DecoderConfig) -> list[int]:
    return [i for i, layer in enumerate(config.layers) if layer.experts is not None]


def test_experts():
    assert parse().layers[0].experts == ExpertsKind(6, 3, 24, RouterKind(), shared=48)
    alone = parse(n_shared_experts=None, norm_topk_prob=True, scoring_func="softmax")
    assert alone.layers[0].experts == ExpertsKind(6, 3, 24, RouterKind(normalise=True))


def test_the_weight_of_a_single_expert_is_not_normalised():
    experts = parse(num_experts_per_tok=1, norm_topk_prob=True).layers[0].experts
    assert experts is not None
    assert not experts.router.normalise


def test_which_layers_have_experts():
    assert sparse_layers(parse()) == [0, 1, 2, 3]
    assert sparse_layers(parse(first_k_dense_replace=1)) == [1, 2, 3]
    assert sparse_layers(parse(first_k_dense_replace=1, moe_layer_freq=2)) == [2]
    dense = parse(first_k_dense_replace=4).layers[0]
    assert (dense.mlp.size, dense.experts) == (128, None)


def test_what_only_training_reads():
    assert parse(aux_loss_alpha=0.001, seq_aux=True) == parse()


def test_biases_of_attention():
    attention = parse(attention_bias=True).layers[0].mixer
    assert (attention.qkv_bias, attention.out_bias) == (True, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_routed_experts": None}, "config.json: n_routed_experts is missing"),
        ({"num_experts_per_tok": None}, "num_experts_per_tok is missing"),
        ({"num_experts_per_tok": 7}, "of 6 experts 7 cannot be chosen"),
        ({"moe_intermediate_size": "24"}, "moe_intermediate_size must be an integer"),
        ({"n_shared_experts": 1.5}, "n_shared_experts must be an integer"),
        ({"first_k_dense_replace": "1"}, "first_k_dense_replace must be an integer"),
        ({"moe_layer_freq": 0}, "moe_layer_freq must be at least 1, not 0"),
        ({"scoring_func": "sigmoid"}, "scoring_func 'sigmoid' is not supported; only 'softmax' is"),
        ({"norm_topk_prob": 1}, "norm_topk_prob must be true or false"),
        ({"kv_lora_rank": 512}, "kv_lora_rank is unknown"),
    ],
)
def test_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ModelError, match=message):
        parse(**changes)
