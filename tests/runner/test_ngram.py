"""Drafts by n-grams are those of a search that is written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import ArrayLike

from jaxinfer.runner.drafting.ngram import NgramDrafts, PredictionPlace, ngram_drafts
from jaxinfer.speculation import Speculation
from tests.runner.ngram_search import searched, searched_with


@pytest.mark.parametrize("speculation", [Speculation(1, 1, 1), Speculation(4, 2, 5), Speculation(8, 1, 3)])
def test_drafts_are_those_of_a_search(speculation: Speculation) -> None:
    rng, hits = np.random.default_rng(0), 0
    for vocabulary in (2, 3, 20):
        lengths = rng.integers(0, 40, 50)
        history = rng.integers(0, vocabulary, (50, 48)).astype(np.int32)  # what lies behind is not to be read
        drafts = ngram_drafts(jnp.asarray(history), int32(lengths), no_prediction(50), speculation)
        for row, length in enumerate(lengths.tolist()):
            wanted = searched(history[row, : length + 1].tolist(), speculation).drafts
            assert drafts_of(drafts, row) == (wanted, False)
            hits += bool(wanted)
    assert hits > 50


@pytest.mark.parametrize("speculation", [Speculation(1, 1, 1), Speculation(4, 2, 5), Speculation(8, 1, 3)])
def test_predictions_are_searched_too_and_go_before_what_shares_as_much(speculation: Speculation) -> None:
    rng, hits, both = np.random.default_rng(1), 0, 0
    for vocabulary in (2, 3, 20):
        lengths, sizes = rng.integers(0, 48, 80), rng.integers(0, 40, 80)
        prompts = rng.integers(0, lengths, endpoint=True)
        history = rng.integers(0, vocabulary, (80, 48)).astype(np.int32)
        prediction = PredictionPlace(int32(sizes), int32(prompts))
        drafts = ngram_drafts(jnp.asarray(history), int32(lengths), prediction, speculation)
        for row, (length, size, prompt) in enumerate(
            zip(*map(np.ndarray.tolist, (lengths, sizes, prompts)), strict=True)
        ):
            tokens = history[row, : length + 1].tolist()
            first = max(48 - size, length + 1)  # outputs have taken the places before
            # The last token of the prompt, and as many tokens after it as the output has.
            aligned = 48 - size + min(prompt, speculation.longest) - 1 + (length - (prompt - 1))
            wanted = searched_with(tokens, history[row, first:].tolist(), aligned - first, speculation)
            assert drafts_of(drafts, row) == (wanted.drafts, wanted.predicted)
            hits += wanted.predicted
            both += wanted.predicted and bool(searched(tokens, speculation).drafts)
    assert hits > both > 10


def test_a_prediction_ends_where_its_row_ends() -> None:
    history = jnp.array([[5, 6, 0, 0, 5, 6, 7, 8], [5, 8, 0, 0, 5, 6, 7, 8]], jnp.int32)
    drafts = ngram_drafts(history, int32([1, 1]), PredictionPlace(int32([4, 4]), int32([1, 1])), Speculation(4, 1, 2))
    assert drafts_of(drafts, 0) == ([7, 8], True)
    assert drafts_of(drafts, 1) == ([], False)


def test_a_text_that_repeats_itself_goes_on() -> None:
    history = jnp.array([[5, 6, 7, 5, 6, 7, 5, 0, 0]], jnp.int32)
    drafts = ngram_drafts(history, int32([6]), no_prediction(1), Speculation(5, 2, 4))
    assert drafts_of(drafts, 0) == ([6, 7, 5, 6, 7], False)


@pytest.mark.long
def test_of_several_places_of_a_prediction_the_nearest_to_the_output_s_is_taken() -> None:
    predicted = [1, 2, 3, 7, 7, 4, 7, 7, 5, 7, 7, 6]
    for output, follow in (([0, 7, 7], 4), ([0, 0, 0, 0, 7, 7], 5), ([*[0] * 8, 7, 7], 6)):
        history = int32([[1, 2, *output, *predicted]])
        prediction = PredictionPlace(int32([12]), int32([2]))
        drafts = ngram_drafts(history, int32([1 + len(output)]), prediction, Speculation(1, 2, 2))
        assert drafts_of(drafts, 0) == ([follow], True)


def no_prediction(rows: int) -> PredictionPlace:
    return PredictionPlace(int32(np.zeros(rows)), int32(np.ones(rows)))


def int32(numbers: ArrayLike) -> jax.Array:
    return jnp.asarray(numbers, jnp.int32)


def drafts_of(drafts: NgramDrafts, row: int) -> tuple[list[int], bool]:
    """A row's drafts, and whether its prediction gave them."""
    return drafts.tokens[row, : drafts.count[row]].tolist(), bool(drafts.predicted[row])
