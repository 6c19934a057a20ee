"""What a model's steps cost, against sizes counted by hand."""

import pytest

from jaxinfer.runner.costs import step_costs
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
