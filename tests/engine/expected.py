"""What the simulated device must draw."""

from collections.abc import Callable, Sequence

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
    allowed: Callable[[list[int]], Sequence[int]] | None = None,
) -> list[int]:
    """What a sequence must generate, from the rules alone: no blocks, no steps. allowed: ids that may follow
    outputs; it ends where none may."""
    tokens, outputs = np.array(prompt, np.int64), list[int]()
    for _ in range(count):
        visible = [tokens if window is None else tokens[-window:] for window in windows]
        ids = range(vocab_size) if allowed is None else allowed(outputs)
        if not len(ids):
            break
        outputs.append(ids[draw(visible, len(tokens) - 1, seed, index, len(ids))])
        tokens = np.append(tokens, outputs[-1])
    return outputs
