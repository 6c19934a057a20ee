"""What a model's steps cost, against sizes counted by hand."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from jaxinfer.engine.stats.step_cost import ExpertCosts
from jaxinfer.model_config.layer_kind import AttentionKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind, RouterKind
from jaxinfer.models.loaded import random_model
from jaxinfer.runner.fit.costs import step_costs
from tests.model_config.uniform import uniform_decoder
from tests.runner.tiny import tiny_model


@pytest.mark.parametrize("windows", [(None, None), (8, None, 8)])
def test_costs_of_a_small_model(windows: tuple[int | None, ...]) -> None:
    costs = step_costs(tiny_model(windows))
    layers, hidden, heads, kv_heads, dim, ff, vocabulary = len(windows), 32, 4, 2, 8, 64, 300
    matrices = layers * (hidden * (heads + 2 * kv_heads) * dim + heads * dim * hidden + 3 * hidden * ff)
    vectors = layers * 2 * hidden + hidden + layers * 2 * dim
    assert costs.token_flops == 2 * (matrices + vectors)
    assert costs.scored_flops == 2 * hidden * vocabulary
    assert costs.weight_bytes == 4 * (matrices + vectors + hidden * vocabulary)
    groups = [windows.count(window) for window in dict.fromkeys(windows)]
    assert costs.kv_bytes == tuple(4 * 2 * count * kv_heads * dim for count in groups)
    assert costs.pair_flops == tuple(2 * 2 * count * heads * dim for count in groups)


@pytest.mark.parametrize("bias", [False, True])
def test_a_token_costs_the_experts_that_it_chooses(bias: bool) -> None:
    """One dense layer, and two with seven experts of which each token takes two, with one that is shared."""
    hidden, heads, dim, ff, size, vocabulary = 32, 4, 8, 64, 16, 300
    attention, router = AttentionKind(num_heads=heads, num_kv_heads=heads, head_dim=dim), RouterKind(bias=bias)
    experts = ExpertsKind(7, 2, size, router, shared=24, bias=bias)
    config = uniform_decoder(
        attention, experts, (None,) * 3, vocab_size=vocabulary, hidden_size=hidden, max_position_embeddings=64
    )
    dense = replace(config.layers[0], mlp=MlpKind(ff))
    config = replace(config, layers=(dense, *config.layers[1:]))
    costs = step_costs(random_model(config, dtype=jnp.dtype("bfloat16")))
    one = size * hidden + size * hidden + hidden * size + (size + size + hidden if bias else 0)
    router_size = 7 * hidden + (7 if bias else 0)
    kept = 3 * 4 * hidden * heads * dim + 7 * hidden  # attention; norms
    kept += 3 * hidden * ff + 2 * (router_size + 3 * 24 * hidden)
    assert costs.token_flops == 2 * (kept + 2 * 2 * one)
    assert costs.weight_bytes == 2 * (kept + vocabulary * hidden)
    assert costs.experts == (ExpertCosts(7, 2, 2 * 2 * one),)


@pytest.mark.parametrize(("tokens", "passes", "read"), [(1, 1, 2), (3, 1, 6), (4, 1, 7), (100, 1, 7), (6, 3, 12)])
def test_a_step_reads_at_most_the_experts_that_its_tokens_can_have_chosen(tokens: int, passes: int, read: int) -> None:
    costs = step_costs(tiny_model())._replace(experts=(ExpertCosts(7, 2, 10),))
    assert costs.expert_bytes(tokens, passes) == 10 * read
