"""Where a model lies: folders, hub ids, and names that are neither."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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


def test_gguf_is_told_to_be_absent(tmp_path: Path):
    file = tmp_path / "model-Q4_K_M.gguf"
    file.touch()
    for name in (file, tmp_path, tmp_path / "absent.GGUF"):
        with pytest.raises(ModelError, match=r"GGUF is not supported yet; give a folder or a hub id with safetensors$"):
            resolve(str(name))


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


def test_a_hub_model_without_config_is_told(tmp_path: Path):
    snapshot = tmp_path / "hub" / "models--owner--name-GGUF" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    refs = tmp_path / "hub" / "models--owner--name-GGUF" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    text = offline("print(resolve('owner/name-GGUF'))", tmp_path, HF_HUB_OFFLINE="1")
    assert "owner/name-GGUF: has no config.json on the hub" in text
    assert "GGUF is not supported yet" in text


def test_a_token_of_the_environment_goes_to_the_hub(tmp_path: Path):
    seen: list[str | None] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "owner/name" in self.path:  # the library asks for other things, too
                seen.append(self.headers["Authorization"])
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{hub.server_port}"
        offline("resolve('owner/name')", tmp_path, HF_HUB_OFFLINE="0", HF_ENDPOINT=endpoint, HF_TOKEN="hf_secret")
        hub.shutdown()
    assert seen
    assert set(seen) == {"Bearer hf_secret"}
