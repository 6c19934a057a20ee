"""What the simulated device must draw."""

from collections.abc import Sequence

import numpy as np

from jaxinfer.engine.device.simulated_shard import draw


def expected_tokens(
    prompt: np.ndarray | Sequence[int],
    count: int,
    *,
    seed: int,
    index: int,
    windows: Sequence[int | None],
    vocab_size: int,
) -> list[int]:
    """What a sequence must generate, from the rules alone: no blocks, no steps."""
    tokens = np.array(prompt, np.int64)
    for _ in range(count):
        visible = [tokens if window is None else tokens[-window:] for window in windows]
        tokens = np.append(tokens, draw(visible, len(tokens) - 1, seed, index, vocab_size))
    return tokens[len(prompt) :].tolist()
