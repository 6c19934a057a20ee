"""Incremental detokenisation joins to the whole sequence's text, and never shows half a character."""

import json
import random
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from jaxinfer.text import Tokenizer
from jaxinfer.text.tokenizer.detokenizer import Detokenizer
from tests.draws import first_seed
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
        text = tokenizer._backend.decode(ids, skip_special_tokens=skip)
        assert "".join(pieces(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip_special_tokens=skip) == text


def byte_tokens(tokenizer: Tokenizer, data: bytes) -> list[int]:
    ids = [token for byte in data if (token := tokenizer.token_to_id(f"<0x{byte:02X}>")) is not None]
    assert len(ids) == len(data)
    return ids


def characters(data: bytes) -> str:
    """Characters where there are any, and one U+FFFD for each byte that belongs to none."""
    text = ""
    while data:
        size = next((size for size in (1, 2, 3, 4) if is_character(data[:size])), 0)
        text += data[:size].decode() if size else "\ufffd"
        data = data[size or 1 :]
    return text


def is_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("name", BYTE_FALLBACK)
@given(data=st.one_of(st.binary(max_size=30), st.text("aé€😀", max_size=9).map(str.encode).map(lambda x: x[1:-1])))
def test_byte_fallback_replaces_each_byte_that_belongs_to_no_character(name: str, data: bytes) -> None:
    tokenizer = load(name)
    ids = byte_tokens(tokenizer, data)
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids) == characters(data).removeprefix(" ")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xe2\x82", "\ufffd\ufffd"),
        (b"\xe2\x82\xac\xe2", "€\ufffd"),
        (b"\xf0\x9f\x98\x80\xf0\x9f", "😀\ufffd\ufffd"),
        (b"\xe2\x82A", "\ufffd\ufffdA"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
    ],
)
@pytest.mark.parametrize("name", BYTE_FALLBACK)
def test_bytes_that_are_no_text_are_what_sentencepiece_makes_of_them(name: str, data: bytes, text: str) -> None:
    """The texts are those of sentencepiece 0.2.3 and the tokenizer.model of stories260K."""
    tokenizer = load(name)
    assert "".join(pieces(tokenizer, byte_tokens(tokenizer, data))) == text


ASCII = ["Hello,", "the", "function", "x_1", "=", "42", "  ", "\n", "don't", "end."]
OTHERS = [
    "你好世界",
    "龘靐齉",
    "😀🎉",
    "👩\u200d👩\u200d👧",
    "नमस्ते",
    "ᚠᛇᚻ",
    "𓀀𓁐",
    "日本語の",
    "ภาษาไทย",
    "한국어",
    "\u2028é",
]
ADDED = ["</s>", "<|end|>", "<|user|>", "<|assistant|>", "<|im_start|>", "<think>"]


def random_line(rng: random.Random) -> str:
    words = rng.choices([*ASCII, *OTHERS, *ADDED], [4] * len(ASCII) + [1] * len(OTHERS) + [1] * len(ADDED), k=18)
    return "".join(word + rng.choice([" ", " ", ""]) for word in words)


def common(one: str, other: str) -> int:
    """How many characters two texts have in common before they differ."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def check_every_cut(tokenizer: Tokenizer, line: str, skip: bool) -> int:
    """Every cut of a line into prompt and output, against the tokenizers package; returns how many there are.

    What is complete at a cut is what the decoding of any shorter beginning has in common with the whole: a half
    character spoils only the end of the one that it ends.
    """
    ids = tokenizer.encode(line)
    whole = tokenizer._backend.decode(ids, skip_special_tokens=skip)
    shown, complete = Detokenizer(tokenizer, skip_special_tokens=skip), 0
    text = ""
    for cut in range(len(ids) + 1):
        before = tokenizer._backend.decode(ids[:cut], skip_special_tokens=skip)
        complete = max(complete, common(whole, before))
        text += shown.push(ids[cut - 1]) if cut else ""
        assert text == whole[:complete], (line, cut)
        assert tokenizer.decode(ids[:cut], skip_special_tokens=skip).rstrip("\ufffd") == text, (line, cut)
        output = Detokenizer(tokenizer, ids[:cut], skip_special_tokens=skip)
        assert "".join(map(output.push, ids[cut:])) + output.flush() == whole[complete:], (line, cut)
    return len(ids) + 1


@pytest.mark.parametrize("name", BYTE_LEVEL + BYTE_FALLBACK)
@pytest.mark.parametrize("lines", [8, pytest.param(300, marks=pytest.mark.long)])
def test_every_cut_of_a_line_into_prompt_and_output(name: str, lines: int) -> None:
    """The output is what the whole has beyond the complete characters of the prompt. Every commit has other lines."""
    rng, tokenizer = random.Random(f"{first_seed()} {lines}"), load(name)
    cuts = sum(check_every_cut(tokenizer, random_line(rng), skip=i % 2 == 0) for i in range(lines))
    print(f"{cuts} cuts of {lines} lines")


@pytest.mark.parametrize("name", BYTE_FALLBACK)
@pytest.mark.parametrize(
    ("prompt", "output", "text"),
    [
        (b"a\xe2\x82", b"\xacb", "€b"),
        (b"a\xe2\x82", b"b", "b"),  # the prompt's text ends with two U+FFFD, which are not the output's
        (b"a\xe2\x82", b"\xf0\x9f\x98\x80", "😀"),
        (b"a\xe2", b"\x82", "\ufffd"),
        (b"a\xe2", b"\xff", "\ufffd"),
        (b"a\xac\xff", b"\xff", "\ufffd"),
        (b"", b" b", "b"),
        (b" ", b" b", " b"),
    ],
)
def test_a_prompt_that_ends_in_half_a_character(name: str, prompt: bytes, output: bytes, text: str) -> None:
    tokenizer = load(name)
    detokenizer = Detokenizer(tokenizer, byte_tokens(tokenizer, prompt))
    assert "".join(map(detokenizer.push, byte_tokens(tokenizer, output))) + detokenizer.flush() == text


def test_a_prompt_without_text_leaves_the_leading_space_to_be_stripped() -> None:
    tokenizer = load("models/stories260K")
    detokenizer = Detokenizer(tokenizer, [1, 10**6])
    assert "".join(map(detokenizer.push, tokenizer.encode("hi", add_special_tokens=False))) == "hi"


def is_byte(tokenizer: Tokenizer, token_id: int) -> bool:
    return re.fullmatch("<0x[0-9A-F]{2}>", tokenizer.id_to_token(token_id) or "") is not None


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


def test_windows_complete_a_character_that_the_prompt_began(tmp_path: Path) -> None:
    words = ["a", "b", *(f"<0x{byte:02X}>" for byte in "€".encode())]
    backend = Backend(WordLevel({word: i for i, word in enumerate(words)}, unk_token="a"))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert not tokenizer.pieces.exact
    for prompt, output, text in [([0, 2, 3], [4, 1], "€b"), ([0, 2, 3], [1], "b"), ([0, 2, 3, 4], [1], "b")]:
        detokenizer = Detokenizer(tokenizer, prompt)
        assert "".join(map(detokenizer.push, output)) + detokenizer.flush() == text


def test_ids_outside_the_vocabulary_give_no_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer(byte_level_folder(tmp_path))
    assert "".join(pieces(tokenizer, [10**6, *tokenizer.encode("hello"), 10**6])) == "hello"
