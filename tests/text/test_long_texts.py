"""A text that is clearly too long is refused by its beginning; one that may fit is tokenised whole."""

from pathlib import Path

import pytest
import tokenizers

from jaxinfer.errors import PromptTooLongError
from jaxinfer.text import Tokenizer
from tests.text.folders import byte_level_folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_level_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Characters of each text that is tokenised."""
    sizes: list[int] = []
    plain = Tokenizer._encode

    def recorded(self: Tokenizer, texts, **options) -> list[list[int]]:
        sizes.extend(map(len, texts))
        return plain(self, texts, **options)

    monkeypatch.setattr(Tokenizer, "_encode", recorded)
    return sizes


def test_what_is_much_too_long_is_refused_by_its_beginning(tokenizer: Tokenizer, encoded: list[int]) -> None:
    with pytest.raises(PromptTooLongError, match=r"more than 100 tokens, .* maximum context length is 101"):
        tokenizer.encode("some words " * 100_000, most=100, param="messages")
    assert encoded == [8 * 100 + 4096]


@pytest.mark.parametrize("length", [1, 100, 5_000, 100_000])
def test_whatever_fits_is_tokenised(tokenizer: Tokenizer, length: int) -> None:
    text = "ab, c" * length
    ids = tokenizer.encode(text)
    assert tokenizer.encode(text, most=len(ids)) == ids
    assert tokenizer.encode(text) == ids


def test_long_tokens_are_tokenised_whole(tmp_path: Path) -> None:
    """Whose text has more characters a token than is tried first."""
    folder = byte_level_folder(tmp_path / "model")
    tokenizer = Tokenizer(folder)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens(["long" * 20])
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer(folder)
    assert len(tokenizer.encode("long" * 20 * 1000, most=1000)) == 1000
