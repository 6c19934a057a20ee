"""What is written for others, read by transformers: its logits are ours."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.convert.conversions import converted, loaded, with_kv_scales
from tests.models.goldens import GOLDENS
from tests.models.paged import ODD_CHUNKS, PagedModel, run_paged
from tests.quantization.checkpoints import LLAMA, made
from tests.quantization.forms import FORMS
from tests.turns import one_of

pytestmark = pytest.mark.parity

PROMPT = np.arange(3, 43)


def source_of(folder: Path, config: dict[str, Any]) -> Path:
    return made({**config, "model_type": "llama", "torch_dtype": "float32"}, {}, FORMS["fp8-rows"][1]).write_plain(
        folder
    )


def logits_of_transformers(folder: Path) -> np.ndarray:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if "quantization_config" in json.loads((folder / "config.json").read_text()):
        pytest.importorskip("compressed_tensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor(PROMPT)[None]).logits[0].numpy()


def assert_same_logits(out: Path) -> np.ndarray:
    wanted = logits_of_transformers(out)
    for row in run_paged(PagedModel(loaded(out)), PROMPT, ODD_CHUNKS):
        np.testing.assert_allclose(row, wanted, atol=2e-4)
    return wanted


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_quantised_weights(quantization: str, tmp_path: Path) -> None:
    source = source_of(tmp_path / "source", {**LLAMA, "vocab_size": 80})
    out = converted(source, tmp_path / "out", "safetensors", dtype=None, quantization=quantization)
    quantised = assert_same_logits(out)
    plain = logits_of_transformers(source)
    assert np.abs(quantised - plain).max() > 1e-3


def test_two_schemes_in_one_model(tmp_path: Path) -> None:
    """Groups of 32 do not divide `down`, which is int8."""
    source = source_of(tmp_path / "source", {**LLAMA, "intermediate_size": 208})
    assert_same_logits(converted(source, tmp_path / "out", "safetensors", dtype=None, quantization="int4"))


@pytest.mark.parametrize("name", one_of(4, ["qwen2", "gemma3", "qwen3_moe", "phi3"]))
def test_plain_weights_out_of_leaves(name: str, tmp_path: Path) -> None:
    leaves = converted(GOLDENS / name, tmp_path / "leaves", "orbax")
    assert_same_logits(converted(leaves, tmp_path / "out", "safetensors", dtype=None))


@pytest.mark.parametrize("name", ["qwen2", "phi3"])
def test_quantised_families(name: str, tmp_path: Path) -> None:
    """Biases; one tensor for q, k and v."""
    assert_same_logits(converted(GOLDENS / name, tmp_path / "out", "safetensors", dtype="float32", quantization="int8"))


@pytest.mark.parametrize("name", ["gemma3_vision", "llava", "mistral3_vision"])
def test_quantised_text_beside_a_plain_tower(name: str, tmp_path: Path) -> None:
    """transformers finds each tensor, and wants no other."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("compressed_tensors")
    out = converted(GOLDENS / name, tmp_path / "out", "safetensors", dtype="float32", quantization="int8")
    model = transformers.AutoModelForImageTextToText
    _, info = model.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
    assert not any(info.values()), info


def test_scales_of_keys_and_values(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("compressed_tensors")
    source = with_kv_scales(tmp_path / "source", ("self_attn.k_scale", "self_attn.v_scale"))
    out = converted(source, tmp_path / "out", "safetensors", dtype=None)
    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    found = {name: float(value) for name, value in model.named_parameters() if name.endswith("_scale")}
    assert found == {
        f"model.layers.{layer}.self_attn.{name}": 0.25 + layer + side
        for layer in range(2)
        for side, name in enumerate(("k_scale", "v_scale"))
    }
