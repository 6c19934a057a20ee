"""Drafts by n-grams are those of a search that is written out."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.runner.ngram import ngram_drafts
from jaxinfer.speculation import Speculation


def searched(tokens: Sequence[int], speculation: Speculation) -> list[int]:
    """What followed the place that shares most with the end of `tokens`, the latest of several; [] for none."""
    newest, best, place = len(tokens) - 1, 0, -1
    for at in range(newest):
        shared = 0
        while shared < min(speculation.longest, at + 1) and tokens[at - shared] == tokens[newest - shared]:
            shared += 1
        if shared >= max(best, speculation.shortest):
            best, place = shared, at
    if place < 0:
        return []
    seen = list(tokens)
    for step in range(speculation.tokens):
        seen.append(seen[place + 1 + step])  # a text that repeats itself goes on
    return seen[len(tokens) :]


@pytest.mark.parametrize("speculation", [Speculation(1, 1, 1), Speculation(4, 2, 5), Speculation(8, 1, 3)])
def test_drafts_are_those_of_a_search(speculation: Speculation) -> None:
    rng, hits = np.random.default_rng(0), 0
    for vocabulary in (2, 3, 20):
        lengths = rng.integers(0, 40, 50)
        history = rng.integers(0, vocabulary, (50, 48)).astype(np.int32)  # what lies behind is not to be read
        drafts, count = ngram_drafts(jnp.asarray(history), jnp.asarray(lengths, jnp.int32), speculation)
        for row, length in enumerate(lengths.tolist()):
            wanted = searched(history[row, : length + 1].tolist(), speculation)
            assert int(count[row]) == len(wanted)
            assert np.asarray(drafts)[row, : len(wanted)].tolist() == wanted
            hits += bool(wanted)
    assert hits > 50


def test_a_text_that_repeats_itself_goes_on() -> None:
    history = jnp.array([[5, 6, 7, 5, 6, 7, 5, 0, 0]], jnp.int32)
    drafts, count = ngram_drafts(history, jnp.array([6]), Speculation(5, 2, 4))
    assert (drafts[0].tolist(), int(count[0])) == ([6, 7, 5, 6, 7], 5)
