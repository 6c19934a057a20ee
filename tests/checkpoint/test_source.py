"""Where a model lies: folders, hub ids, and names that are neither."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxinfer.checkpoint.source import resolve
from jaxinfer.errors import ModelError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text("{}")
    return tmp_path / "my-model"


def test_a_folder_is_itself(folder: Path, monkeypatch: pytest.MonkeyPatch):
    assert resolve(str(folder)) == folder
    monkeypatch.chdir(folder.parent)
    assert resolve("my-model") == Path("my-model")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-modle", r"neither a folder nor a hub id `owner/name`; did you mean \./my-model\?"),
        ("./my_model", r"did you mean \./my-model\?"),
        ("dmeo", "did you mean demo, the model in the package"),
        ("nowhere", "neither a folder nor a hub id `owner/name`$"),
        ("a/b/c", "neither a folder nor a hub id"),
        ("owner/na me", "neither a folder nor a hub id"),
        ("../x/y", "neither a folder nor a hub id"),
        ("", "neither a folder nor a hub id"),
        ("https://example.org/x", "neither a folder nor a hub id"),
        ("my-model/config.json", "is a file; give the folder"),
    ],
)
def test_names_that_are_neither(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str):
    monkeypatch.chdir(folder.parent)
    with pytest.raises(ModelError, match=message):
        resolve(name)


def test_an_absolute_path_gets_an_absolute_hint(folder: Path):
    with pytest.raises(ModelError, match=f"did you mean {folder}"):
        resolve(str(folder)[:-1])


def test_a_folder_without_config(tmp_path: Path):
    with pytest.raises(ModelError, match=r"has no config\.json"):
        resolve(str(tmp_path))


def test_a_revision_of_a_folder_is_refused(folder: Path):
    with pytest.raises(ModelError, match="revision 'main' is for hub models only"):
        resolve(str(folder), "main")


def offline(code: str, home: Path, **variables: str) -> str:
    """What a fresh process prints: huggingface_hub reads its environment when it is imported."""
    environment = {**os.environ, "HF_HOME": str(home), **variables}
    script = f"from jaxinfer.checkpoint.source import resolve\ntry:\n    {code}\nexcept Exception as e:\n    print(e)"
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True).stdout


def test_offline_says_what_to_do(tmp_path: Path):
    text = offline("resolve('owner/name')", tmp_path, HF_HUB_OFFLINE="1")
    assert "owner/name: is not in the local cache, and HF_HUB_OFFLINE is set; download it where" in text


def test_a_hub_id_that_may_be_a_folder_is_told_so(tmp_path: Path):
    text = offline("resolve('owner/name')", tmp_path, HF_HUB_OFFLINE="1")
    assert text.endswith("; there is no local folder owner/name either\n")
    text = offline("resolve('tests/chekpoint')", tmp_path, HF_HUB_OFFLINE="1")
    assert text.endswith("no local folder tests/chekpoint either; did you mean ./tests/checkpoint?\n")


def test_an_unreachable_hub_fails_at_once(tmp_path: Path):
    # A port of the loopback device that nobody listens on.
    text = offline("resolve('owner/name')", tmp_path, HF_HUB_OFFLINE="0", HF_ENDPOINT="http://127.0.0.1:9")
    assert "owner/name: is not in the local cache, and the hub cannot be reached; download it where" in text


def test_a_cached_hub_model_needs_no_network(tmp_path: Path):
    snapshot = tmp_path / "hub" / "models--owner--name" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    refs = tmp_path / "hub" / "models--owner--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    text = offline("print(resolve('owner/name'))", tmp_path, HF_HUB_OFFLINE="1")
    assert text.strip() == str(snapshot)
