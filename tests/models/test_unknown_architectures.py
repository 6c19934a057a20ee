"""Goldens whose config.json names an architecture that nobody knows: refused with advice, or read as asked for."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxinfer.errors import ModelError
from jaxinfer.model_config.text_part import TEXT_PARTS
from jaxinfer.models.declared import fitting, read_declared
from jaxinfer.models.loaded import load_model

from .goldens import FAMILIES, GOLDENS
from .paged import ODD_CHUNKS, PagedModel, run_paged


def renamed(family: str, folder: Path) -> str:
    """Copies a golden under a name of its own; returns the right one."""
    shutil.copytree(GOLDENS / family, folder, dirs_exist_ok=True)
    raw = json.loads((folder / "config.json").read_text())
    (name,) = raw["architectures"]
    (folder / "config.json").write_text(json.dumps({**raw, "architectures": ["OursForCausalLM"]}))
    return name


@pytest.mark.few(24)
@pytest.mark.parametrize("family", FAMILIES)
def test_refused_with_what_fits(family: str, tmp_path: Path) -> None:
    name = renamed(family, tmp_path)
    with pytest.raises(ModelError, match="'OursForCausalLM' is not supported") as error:
        read_declared(tmp_path)
    if name in TEXT_PARTS:
        assert "no architecture that is known has its fields and tensors" in str(error.value)
    else:
        assert name in fitting(tmp_path)
        assert f"--architecture {fitting(tmp_path)[0]} loads it as such" in str(error.value)


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama2", "gemma3", "olmo2", "gpt_oss", "gpt2", "gemma3_vision"])
def test_reproduced_where_asked_for(family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = renamed(family, tmp_path)
    config = read_declared(tmp_path, name).config
    assert f"names OursForCausalLM and is read as {name}: norms" in caplog.text
    golden = np.load(tmp_path / "golden.npz")
    model = load_model(tmp_path, config, dtype=np.dtype(np.float32))
    for row in run_paged(PagedModel(model), golden["token_ids"], ODD_CHUNKS):
        np.testing.assert_allclose(row, golden["logits"], atol=1e-4)


def test_what_it_is_read_as_must_be_known() -> None:
    with pytest.raises(ModelError, match="'NobodysForCausalLM' is not supported; `jaxinfer models` lists"):
        read_declared(GOLDENS / "llama2", "NobodysForCausalLM")


def test_no_warning_where_it_names_the_same(caplog: pytest.LogCaptureFixture) -> None:
    read_declared(GOLDENS / "llama2", "LlamaForCausalLM")
    assert not caplog.text


def test_by_fields_alone_where_there_are_no_weights(tmp_path: Path) -> None:
    renamed("olmo2", tmp_path)
    with_weights = fitting(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert set(with_weights) < set(fitting(tmp_path))
