"""How the two halves of a gated MLP's first matrix take turns."""

import pytest

from jaxinfer.layers.mlp import gate_up_block


@pytest.mark.parametrize(
    ("size", "block"),
    [(14336, 128), (10240, 128), (3072, 64), (768, 16), (2880, 8), (48, 8), (20, 1), (7, 1)],
    ids=["Llama-3.1-8B", "Gemma-3-4B", "Qwen3-0.6B", "Qwen3-30B-A3B", "gpt-oss", "a tile of 8", "4 left", "odd"],
)
def test_turns_fill_a_tile_of_a_tpu_where_they_can(size: int, block: int) -> None:
    assert gate_up_block(size) == block
