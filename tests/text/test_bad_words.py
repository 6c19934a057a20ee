"""From bad words to token sequences, by vLLM's rule."""

from pathlib import Path

import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.sampling import SamplingParams
from jaxinfer.text import Tokenizer
from jaxinfer.text.tokenizer.bad_words import with_bad_token_ids
from tests.text.folders import byte_level_folder, with_bos


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    """Of its merges ` w` and `hello` are tokens; ` hello` is two."""
    return Tokenizer(with_bos(byte_level_folder(tmp_path)))


def ids_of(tokenizer: Tokenizer, *names: str) -> tuple[int, ...]:
    ids = [tokenizer.token_to_id(name) for name in names]
    assert None not in ids
    return tuple(id for id in ids if id is not None)


def found(tokenizer: Tokenizer, *words: str) -> set[tuple[int, ...]]:
    return set(map(tuple, with_bad_token_ids(SamplingParams(bad_words=words), tokenizer).bad_token_ids))


def test_a_word_is_looked_for_with_a_space_where_that_is_another_token(tokenizer: Tokenizer) -> None:
    assert found(tokenizer, "w") == {ids_of(tokenizer, "w"), ids_of(tokenizer, "\u0120w")}
    assert found(tokenizer, "hello") == {ids_of(tokenizer, "hello")}  # a space before it is a token of its own
    assert found(tokenizer, "x", "hello") == {ids_of(tokenizer, "x"), ids_of(tokenizer, "hello")}


def test_white_space_before_a_word_is_no_part_of_it(tokenizer: Tokenizer) -> None:
    assert found(tokenizer, "  w", "w") == found(tokenizer, "w")


def test_no_special_tokens_are_added_and_a_control_token_is_one(tokenizer: Tokenizer) -> None:
    assert found(tokenizer, "<|end|>") == {ids_of(tokenizer, "<|end|>")}
    assert found(tokenizer, "he") == {ids_of(tokenizer, "he")}


def test_sequences_that_were_given_stay(tokenizer: Tokenizer) -> None:
    params = with_bad_token_ids(SamplingParams(bad_words=["x"], bad_token_ids=[[5, 6]]), tokenizer)
    assert params.bad_token_ids == ((5, 6), ids_of(tokenizer, "x"))
    assert with_bad_token_ids(params, tokenizer) == params
    assert params.bad_words == ("x",)


def test_errors_name_the_field(tokenizer: Tokenizer) -> None:
    with pytest.raises(ParameterError, match="bad_words: has a lone surrogate"):
        found(tokenizer, "a\ud800")
    with pytest.raises(ParameterError, match="bad_words: each must be a string"):
        found(tokenizer, " ")
