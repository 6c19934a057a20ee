"""Incremental detokenisation joins to the whole sequence's text, and never shows half a character."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from jaxinfer.text import Tokenizer
from jaxinfer.text.detokenizer import Detokenizer
from tests.material import material
from tests.text.folders import byte_level_folder

BYTE_LEVEL = ["tokenizers/qwen3", "tokenizers/llama3.2"]
BYTE_FALLBACK = ["tokenizers/phi3-v", "models/stories260K"]
SOME_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
WORDS = ["the", "cat", "sat", "on", "a", "mat"]
SOME_IDS = st.lists(st.integers(0, 2**31), max_size=30)


@cache
def load(name: str) -> Tokenizer:
    return Tokenizer(material(name))


def pieces(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@pytest.mark.parametrize("name", BYTE_LEVEL)
@pytest.mark.parametrize("skip", [True, False])
@given(raw=SOME_IDS)
def test_byte_level_pieces_join_to_the_full_decoding_of_any_tokens(name: str, skip: bool, raw: list[int]) -> None:
    tokenizer = load(name)
    ids = [token % tokenizer.vocab_size for token in raw]
    assert "".join(pieces(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", BYTE_LEVEL)
@given(raw=st.lists(st.integers(0, 255), max_size=40))
def test_byte_level_pieces_join_over_single_bytes(name: str, raw: list[int]) -> None:
    tokenizer = load(name)
    single = [i for i in range(256) if len(tokenizer.pieces.piece(i)) == 1]
    ids = [single[value % len(single)] for value in raw]
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", BYTE_FALLBACK)
@given(texts=st.lists(st.one_of(SOME_TEXT, SOME_IDS), max_size=6))
def test_byte_fallback_pieces_join_to_the_full_decoding(name: str, texts: list[str | list[int]]) -> None:
    tokenizer = load(name)
    ids = []
    for part in texts:
        if isinstance(part, str):
            ids += tokenizer.encode(part, add_special_tokens=False)
        else:  # any tokens but single bytes, which need not form characters
            ids += [t for raw in part if not is_byte(tokenizer, t := raw % tokenizer.vocab_size)]
    for skip in (True, False):
        assert "".join(pieces(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", BYTE_FALLBACK)
@given(data=st.binary(max_size=30))
def test_byte_fallback_of_bytes_that_are_no_text_follows_utf8(name: str, data: bytes) -> None:
    tokenizer = load(name)
    ids = [token for byte in data if (token := tokenizer.token_to_id(f"<0x{byte:02X}>")) is not None]
    assert len(ids) == len(data)
    assert "".join(pieces(tokenizer, ids)) == data.decode("utf-8", "replace").removeprefix(" ")


def is_byte(tokenizer: Tokenizer, token_id: int) -> bool:
    return re.fullmatch("<0x[0-9A-F]{2}>", tokenizer._backend.id_to_token(token_id) or "") is not None


@pytest.mark.parametrize("name", BYTE_LEVEL + BYTE_FALLBACK)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=30))
def test_no_piece_holds_half_a_character(name: str, text: str) -> None:
    tokenizer = load(name)
    shown = pieces(tokenizer, tokenizer.encode(text, add_special_tokens=False))
    assert not any("\ufffd" in piece for piece in shown)


@pytest.mark.smoke
def test_half_a_character_is_shown_at_the_end_and_not_before(tmp_path: Path) -> None:
    tokenizer = Tokenizer(byte_level_folder(tmp_path))
    ids = tokenizer.encode("a😀")
    assert pieces(tokenizer, ids) == ["a", "", "", "", "😀", ""]
    assert pieces(tokenizer, ids[:-1]) == ["a", "", "", "", "\ufffd"]


def test_a_leading_space_belongs_to_the_text_only_after_a_prompt() -> None:
    folder = material("models", "stories260K")
    tokenizer = Tokenizer(folder)
    for case in json.loads((folder / "greedy_reference.json").read_text())["cases"]:
        detokenizer = Detokenizer(tokenizer, case["prompt_token_ids"])
        text = "".join(map(detokenizer.push, case["new_token_ids"])) + detokenizer.flush()
        assert case["prompt"] + text == case["full_text"]


@given(raw=st.lists(st.integers(0, 5), max_size=20), before=st.integers(0, 3))
def test_a_tokenizer_of_another_kind_is_decoded_by_windows(
    tmp_path_factory: pytest.TempPathFactory, raw: list[int], before: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "words"
    folder.mkdir(exist_ok=True)
    backend = Backend(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="the"))
    backend.pre_tokenizer = Whitespace()
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer(folder)
    detokenizer = Detokenizer(tokenizer, raw[:before])
    text = "".join(map(detokenizer.push, raw[before:])) + detokenizer.flush()
    assert tokenizer.decode(raw[:before]) + text == tokenizer.decode(raw)


def test_ids_outside_the_vocabulary_give_no_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer(byte_level_folder(tmp_path))
    assert "".join(pieces(tokenizer, [10**6, *tokenizer.encode("hello"), 10**6])) == "hello"
