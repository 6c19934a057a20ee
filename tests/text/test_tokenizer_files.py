"""Which file of a tokenizer's folder wins: every row of the text package's README, pinned and beside transformers."""

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import tokenizers
from tokenizers.normalizers import Lowercase

from jaxinfer.errors import ModelError
from jaxinfer.text import Tokenizer
from tests.material import REPOSITORY
from tests.text.folders import byte_level_folder, with_bos

README = REPOSITORY / "jaxinfer" / "text" / "README.md"
BOS, END, USER, HELLO, NEW = 263, 264, 266, 259, 268
BOS_TOKEN = {"bos_token": "<|bos|>"}
PLAIN = {"content": "<one>", "lstrip": False, "rstrip": False, "normalized": False, "special": False}


class Case(NamedTuple):
    """A folder, as what stands in each of its files, and what a text becomes there.

    with_bos: tokenizer.json's post-processor puts BOS before a text. named: special tokens by name. special: ids that
    `skip_special_tokens` leaves out, beyond the five of tokenizer.json.
    """

    text: str
    ids: list[int]
    config: Mapping[str, Any] = MappingProxyType({})
    special_map: dict[str, Any] | None = None
    added: dict[str, int] | None = None
    with_bos: bool = False
    named: Mapping[str, str] = MappingProxyType({})
    special: tuple[int, ...] = ()


CASES = {
    "post-processor": Case(
        "hello", [BOS, HELLO], {"add_bos_token": False, "add_eos_token": True, **BOS_TOKEN}, with_bos=True
    ),
    "no-post-processor": Case("hello", [HELLO], {"add_bos_token": True, **BOS_TOKEN}),
    "map-adds-bos": Case("hello", [BOS, HELLO], {"add_bos_token": False, **BOS_TOKEN}, {"add_bos_token": True}),
    "map-before-config": Case(
        "hello",
        [HELLO],
        {"bos_token": None, "eos_token": "<|end|>"},
        {"bos_token": "<|bos|>", "eos_token": {"content": "<|user|>"}},
        named={"bos_token": "<|bos|>", "eos_token": "<|user|>"},
    ),
    "decoder-hides-map": Case(
        "hello",
        [HELLO],
        {"eos_token": "<|end|>", "added_tokens_decoder": {}},
        {"eos_token": "<|user|>", "bos_token": "<|bos|>"},
        named={"eos_token": "<|end|>"},
    ),
    "decoder-hides-added": Case(
        "hello<hi>", [HELLO, 27, 71, 72, 29], {"added_tokens_decoder": {}}, added={"<hi>": 300}
    ),
    "decoder-flags": Case(
        "hello <|end|>",
        [HELLO, END],
        {"added_tokens_decoder": {"264": {**PLAIN, "content": "<|end|>", "lstrip": True, "special": True}}},
    ),
    "added-tokens": Case(
        "<two><one>",
        [NEW + 1, NEW],
        {"pad_token": "<one>"},
        added={"<two>": 301, "<one>": 300},
        named={"pad_token": "<one>"},
        special=(NEW,),
    ),
    "named-is-special": Case(
        "<one>",
        [NEW],
        {"eos_token": "<one>", "added_tokens_decoder": {"268": PLAIN}},
        named={"eos_token": "<one>"},
        special=(NEW,),
    ),
    "older-list": Case("<one>", [NEW], {"additional_special_tokens": ["<one>"]}, special=(NEW,)),
    "newer-list": Case(
        "<one><two>",
        [27, 78, 77, 68, 29, NEW],
        {"additional_special_tokens": ["<one>"], "extra_special_tokens": ["<two>"]},
        special=(NEW,),
    ),
    "older-lists": Case(
        "<two>",
        [27, 83, 86, 78, 29],
        {"additional_special_tokens": ["<one>"]},
        {"additional_special_tokens": ["<two>"]},
        special=(NEW,),
    ),
    "newer-lists": Case(
        "<two><one>",
        [NEW + 1, NEW],
        {"extra_special_tokens": ["<one>"]},
        {"extra_special_tokens": ["<two>"]},
        special=(NEW, NEW + 1),
    ),
    "own-names": Case(
        "<img>",
        [NEW],
        {"image_token": "<img>", "extra_special_tokens": {"audio_token": "<|user|>"}},
        named={"image_token": "<img>", "audio_token": "<|user|>"},
        special=(NEW,),
    ),
    "listed-names": Case(
        "<img>",
        [NEW],
        {"model_specific_special_tokens": {"image_token": "<img>"}},
        named={"image_token": "<img>"},
        special=(NEW,),
    ),
    "split": Case("<|end|>", [27, 91, 68, 77, 67, 91, 29], {"split_special_tokens": True}),
    "versions": Case("<v5>", [NEW], {"fast_tokenizer_files": ["tokenizer.json", "tokenizer.5.0.json"]}),
}


def written(folder: Path, case: Case) -> Path:
    byte_level_folder(folder)
    if case.with_bos:
        with_bos(folder)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens(["<v5>"])
    backend.save(str(folder / "tokenizer.5.0.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(case.config)))
    for name, content in (("special_tokens_map.json", case.special_map), ("added_tokens.json", case.added)):
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    return folder


def special_beyond(ids: frozenset[int] | set[int]) -> tuple[int, ...]:
    return tuple(sorted(ids - set(range(BOS, NEW))))


@pytest.mark.parametrize("name", CASES)
def test_each_row_of_the_readme(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    tokenizer = Tokenizer(written(tmp_path, case))
    assert tokenizer.encode(case.text) == case.ids
    assert special_beyond(tokenizer.special_ids) == case.special
    if case.named:
        assert tokenizer.special_tokens == case.named


@pytest.mark.parity
@pytest.mark.parametrize("name", CASES)
def test_each_row_is_what_transformers_does(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    case = CASES[name]
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(written(tmp_path, case))
    assert theirs(case.text).input_ids == case.ids
    added = theirs.added_tokens_decoder.items()
    assert special_beyond({token_id for token_id, token in added if token.special}) == case.special
    if case.named:
        assert {name: str(token) for name, token in theirs.special_tokens_map.items()} == case.named


def test_the_readme_has_a_row_for_each_case() -> None:
    assert re.findall(r"^\| `([\w-]+)` \|", README.read_text(), re.M) == list(CASES)


TOKENS = ["<|bos|>", "<|end|>", "<|user|>", "<new1>", "<New2>", "hell", "he", "<new3>"]
NAMES = ["bos_token", "eos_token", "unk_token", "pad_token", "image_token", "cls_token"]
TEXTS = ["hello world", " <|bos|> he<new1> x <New2> <new2>hell <|end|><|user|>", "", "<new3>  HELLO <|USER|>"]


def random_folder(folder: Path, draw: random.Random) -> Path:
    """Files that say different things of the same names, but one thing of a token's flags."""
    flags = {text: {"normalized": draw.random() < 0.5, "lstrip": draw.random() < 0.3} for text in TOKENS}
    chosen = lambda: draw.choice(TOKENS)  # noqa: E731
    typed = lambda: draw.choice([chosen(), {"__type": "AddedToken", "content": (text := chosen()), **flags[text]}])  # noqa: E731
    config: dict[str, Any] = {name: typed() for name in NAMES if draw.random() < 0.4}
    special_map: dict[str, Any] = {name: chosen() for name in NAMES if draw.random() < 0.3}
    config |= {name: draw.random() < 0.5 for name in ("add_bos_token", "add_eos_token") if draw.random() < 0.3}
    config |= {"model_specific_special_tokens": {"video_token": chosen()}} if draw.random() < 0.2 else {}
    for files in (config, special_map):
        if draw.random() < 0.3:
            files["additional_special_tokens"] = draw.sample(TOKENS, draw.randint(0, 2))
        if draw.random() < 0.3:
            files["extra_special_tokens"] = draw.choice(
                [draw.sample(TOKENS, draw.randint(0, 2)), {"audio_token": chosen()}]
            )
    if draw.random() < 0.4:
        declared = draw.sample(TOKENS, 3)
        specs = [{"content": text, **flags[text], "special": draw.random() < 0.5} for text in declared]
        config["added_tokens_decoder"] = dict(zip(("300", "5", "301"), specs, strict=True))
    added = {text: 300 + i for i, text in enumerate(draw.sample(TOKENS, 2))}
    written(folder, Case("", [], config, special_map, added if draw.random() < 0.4 else None, draw.random() < 0.5))
    if draw.random() < 0.5:
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.normalizer = Lowercase()
        backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parity
@pytest.mark.parametrize("seed", range(40))
def test_random_folders_are_read_as_transformers_reads_them(seed: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = random_folder(tmp_path, random.Random(seed))
    theirs, ours = transformers.PreTrainedTokenizerFast.from_pretrained(folder), Tokenizer(folder)
    assert ours.special_tokens == {name: str(token) for name, token in theirs.special_tokens_map.items()}
    assert ours.special_ids == {token_id for token_id, token in theirs.added_tokens_decoder.items() if token.special}
    for text in TEXTS:
        for special in (True, False):
            assert ours.encode(text, add_special_tokens=special) == theirs(text, add_special_tokens=special).input_ids


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer_config.json", {"bos_token": 5}, "tokenizer_config.json: bos_token must be a text, or an object"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, "added_tokens_decoder must map ids to objects"),
        ("tokenizer_config.json", {"extra_special_tokens": [7]}, "extra_special_tokens must be a text"),
        ("added_tokens.json", {"<one>": "300"}, "added_tokens.json: '<one>' must have an id"),
        ("tokenizer_config.json", {"bos_token": {"id": 1}}, "tokenizer_config.json: bos_token must be a text, or an"),
        ("special_tokens_map.json", {"pad_token": {}}, "special_tokens_map.json: pad_token must be a text, or an"),
        ("tokenizer_config.json", {"additional_special_tokens": "<a>"}, "additional_special_tokens must be a list"),
        ("tokenizer_config.json", {"extra_special_tokens": 5}, "extra_special_tokens must be a list or an object"),
        ("special_tokens_map.json", {"extra_special_tokens": "a"}, "special_tokens_map.json: extra_special_tokens"),
        ("tokenizer_config.json", {"fast_tokenizer_files": 5}, "fast_tokenizer_files must be a list, not 5"),
        ("tokenizer_config.json", {"model_specific_special_tokens": [1]}, "special_tokens must be an object"),
    ],
)
def test_a_wrong_value_names_file_and_field(file: str, content: dict[str, Any], message: str, tmp_path: Path) -> None:
    byte_level_folder(tmp_path)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(ModelError, match=re.escape(message)):
        Tokenizer(tmp_path)
