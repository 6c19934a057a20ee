"""The parts of the run that need neither vLLM's tests nor a server."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tests.clients.vllm_suite.listing import Listing, read_listing
from tests.clients.vllm_suite.models import EMBEDDING, make_models
from tests.clients.vllm_suite.verdict import verdict
from tests.material import REPOSITORY

DEMO = REPOSITORY / "jaxinfer" / "demo"
LISTING = Listing(passes={"a": "", "b": ""}, fails={"c": "no beam search", "d": "no regex"}, excluded={"e": "images"})


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_models(DEMO, folder)
    return folder


@pytest.fixture
def standins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).with_name("standins")), *sys.path])


def listing(tmp_path: Path, text: str) -> Listing:
    file = tmp_path / "tests.txt"
    file.write_text(text)
    return read_listing(file)


def test_a_listed_test_that_fails_or_does_not_run_is_an_error():
    assert verdict(LISTING, ["a", "b"], {"a": "passed", "b": "passed"}).status == 0
    failed = verdict(LISTING, ["a", "b"], {"a": "passed", "b": "failed"})
    assert failed.status == 1
    assert "FAILS, but is listed as passing: b (failed)" in failed.report
    assert verdict(LISTING, ["a", "b"], {"a": "passed"}).status == 1


def test_what_fails_is_told_with_its_reason_and_what_passes_unlisted_is_reported():
    done = verdict(LISTING, LISTING.run, {"a": "passed", "b": "passed", "c": "failed", "d": "passed"})
    assert done.status == 0
    assert "3 of 4 tests passed" in done.report
    assert "fails as listed: c  # no beam search" in done.report
    assert "PASSES, but is listed as failing: d" in done.report


def test_the_listing_is_one_test_a_line_with_reasons(tmp_path: Path):
    text = "# chat\n[passes]\nx.py::one[a-b]\n\n[fails]\nx.py::two  # why\n[excluded]\ny.py  # images\n"
    read = listing(tmp_path, text)
    assert read == Listing({"x.py::one[a-b]": ""}, {"x.py::two": "why"}, {"y.py": "images"})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[passes]\na\na\n", "line 3: a is listed twice"),
        ("[fails]\na\n", "line 2: a reason"),
        ("[passes]\na  # why\n", "line 2: a reason"),
        ("[maybe]\na\n", "line 2: no section 'maybe'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, error: str):
    with pytest.raises(ValueError, match=error):
        listing(tmp_path, text)


def test_the_list_that_is_committed_can_be_read():
    assert len(read_listing().run) >= 98


@pytest.mark.usefixtures("standins")
def test_flags_are_translated_and_an_unknown_one_is_named():
    from server_flags import translated  # pyright: ignore[reportMissingImports]

    given = ["--dtype", "half", "--max-model-len", "8192", "--enforce-eager", "--reasoning-parser", "qwen3"]
    assert translated([*given, "--max-model-len", "10100"]) == [
        "--reasoning-parser", "think", "--tool-call-parser", "none", "--max-model-len", "10100",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="--no-such-flag"):
        translated(["--no-such-flag"])


def test_the_chat_model_is_the_demo_model_with_other_ids(models: Path):
    demo, chat = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (DEMO, models / "chat"))
    text = "<|im_start|>user\nWhat is 3 plus 4?<|im_end|>\n<think>"
    assert demo.encode(text).tokens == chat.encode(text).tokens
    rows, moved = (load_file(folder / "model.safetensors")[EMBEDDING] for folder in (DEMO, models / "chat"))
    assert np.array_equal(rows[demo.encode(text).ids], moved[chat.encode(text).ids])
    assert chat.decode([0]) == "!"


def test_ids_in_configs_name_the_same_tokens(models: Path):
    for name in ("config.json", "generation_config.json"):
        ends = json.loads((models / "chat" / name).read_text())["eos_token_id"]
        tokenizer = Tokenizer.from_file(str(models / "chat" / "tokenizer.json"))
        assert tokenizer.id_to_token(ends if isinstance(ends, int) else ends[0]) == "<|im_end|>"
