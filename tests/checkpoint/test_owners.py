"""Hub ids without an owner."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxinfer.checkpoint.owners import candidates
from jaxinfer.checkpoint.source import resolve
from jaxinfer.errors import ModelError
from tests.checkpoint import resolve_named
from tests.material import REPOSITORY


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Qwen3-0.6B", ["Qwen/Qwen3-0.6B"]), ("QwQ-32B", ["Qwen/QwQ-32B"]),
        ("Llama-3.1-8B-Instruct", ["meta-llama/Llama-3.1-8B-Instruct"]), ("gpt-oss-20b", ["openai/gpt-oss-20b"]),
        ("DeepSeek-V3", ["deepseek-ai/DeepSeek-V3"]), ("SmolLM2-135M", ["HuggingFaceTB/SmolLM2-135M"]),
        ("Mistral-7B-v0.1", ["mistralai/Mistral-7B-v0.1"]), ("gemma-2-2b", ["google/gemma-2-2b"]),
        ("TinyLlama-1.1B", ["TinyLlama/TinyLlama-1.1B"]), ("demo", []), ("my-model", []), ("a/b", []), ("../x", []),
        ("", []),
    ],
)  # fmt: skip
def test_owners_by_the_beginning_of_a_name(tmp_path: Path, name: str, found: list[str]) -> None:
    assert candidates(name, tmp_path) == found


def test_the_local_cache_comes_first(tmp_path: Path) -> None:
    (tmp_path / "models--unsloth--Qwen3-0.6B").mkdir()
    (tmp_path / "models--me--my-model").mkdir()
    assert candidates("Qwen3-0.6B", tmp_path) == ["unsloth/Qwen3-0.6B", "Qwen/Qwen3-0.6B"]
    assert candidates("my-model", tmp_path) == ["me/my-model"]


def test_a_name_is_looked_up_or_the_error_lists_who_it_may_be(tmp_path: Path, monkeypatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"^Qwen/Qwen3-0.6B: is not in the local cache"):
        resolve("Qwen3-0.6B")
    with pytest.raises(ModelError, match=r"granite-3: has no owner; it may be ibm-granite/granite-3 or ibm/granite-3"):
        resolve("granite-3")
    with pytest.raises(ModelError, match="neither a folder nor a hub id"):
        resolve("my-model")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen3-0.6B").mkdir()
    (tmp_path / "Qwen3-0.6B" / "config.json").write_text("{}")
    assert resolve("Qwen3-0.6B") == Path("Qwen3-0.6B")


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "nobody/nothing", "my-model"])
def test_a_dead_network_takes_our_time_limit(tmp_path: Path, name: str) -> None:
    """huggingface_hub reads it once, when it is first imported: so in a process of its own."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    environment.pop("HF_HUB_ETAG_TIMEOUT", None)
    done = subprocess.run(
        [sys.executable, "-m", resolve_named.__name__, name],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment,
        check=True,
    )
    assert done.stdout.strip() == "5"
