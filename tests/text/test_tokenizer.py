"""Tokenizer: encodes what transformers encodes, refuses what must not reach the tokenizer."""

import json
from pathlib import Path

import pytest

from jaxinfer.errors import ModelError, ParameterError
from jaxinfer.text import Tokenizer
from jaxinfer.text.tokenizer import tokenizer
from tests.material import material
from tests.text.folders import byte_level_folder, with_bos

TEXTS = [
    "",
    " ",
    "Hello",
    " two  spaces ",
    "é 日本 😀 \u200d",
    "<|endoftext|> <s>x</s>",
    "a\n\n\tb\r\n",
    "123456 7.5e-3",
]


@pytest.mark.smoke
def test_prompts_encode_to_the_reference_ids() -> None:
    folder = material("models", "stories260K")
    tokenizer = Tokenizer(folder)
    for case in json.loads((folder / "greedy_reference.json").read_text())["cases"]:
        assert tokenizer.encode(case["prompt"]) == case["prompt_token_ids"]


@pytest.mark.parity
@pytest.mark.parametrize("name", ["models/stories260K", "tokenizers/phi3-v", "tokenizers/qwen3"])
def test_encodes_and_decodes_as_transformers_does(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    # The generic class reads tokenizer.json as it stands; the Llama class of transformers 5 writes its own normaliser.
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(material(name))
    ours = Tokenizer(material(name))
    for text in TEXTS:
        for special in (True, False):
            ids = theirs(text, add_special_tokens=special).input_ids
            assert ours.encode(text, add_special_tokens=special) == ids
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
            assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids, skip_special_tokens=False)
    special = {token_id for token_id, token in theirs.added_tokens_decoder.items() if token.special}
    assert ours.special_ids == special
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)


def test_the_post_processor_adds_bos_only_with_special_tokens(tmp_path: Path) -> None:
    bos = Tokenizer(with_bos(byte_level_folder(tmp_path / "with")))
    assert bos.encode("hello") == [bos.bos_token_id, bos.token_to_id("hello")]
    assert bos.encode("hello", add_special_tokens=False) == [bos.token_to_id("hello")]
    without = Tokenizer(byte_level_folder(tmp_path / "without"))
    assert without.encode("") == []


def test_special_tokens_are_found_in_special_tokens_map(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|end|>"}}))
    assert Tokenizer(folder).eos_token_id == Tokenizer(folder).token_to_id("<|end|>")


def test_characters_are_counted_before_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer(byte_level_folder(tmp_path), max_chars=10)
    assert len(tokenizer.encode("abcdefghij")) == 10
    with pytest.raises(ParameterError, match="prompt: has 11 characters; at most 10"):
        tokenizer.encode("abcdefghijk")


def test_a_lone_surrogate_is_refused_by_name(tmp_path: Path) -> None:
    tokenizer = Tokenizer(byte_level_folder(tmp_path))
    with pytest.raises(ParameterError, match=r"prompt\[1\]: has a lone surrogate at character 2"):
        tokenizer.encode_batch(["fine", "ab\ud800"])


@pytest.mark.parametrize(("content", "message"), [(None, "is absent"), ("{", "is not a tokenizer")])
def test_a_folder_without_a_readable_tokenizer_names_the_file(tmp_path: Path, content: str, message: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=f"tokenizer.json {message}"):
        Tokenizer(tmp_path)


def test_a_folder_that_takes_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    byte_level_folder(tmp_path)
    monkeypatch.setattr(tokenizer, "MOST_READ_SECONDS", 0.0)
    with pytest.raises(ModelError, match=r"its tokenizer takes 0 s to read; at most 0 are allowed"):
        Tokenizer(tmp_path)
