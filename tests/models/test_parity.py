"""Fresh random models of every family against transformers, live, or against NumPy where it has no class for them."""

import functools
import importlib.util
from pathlib import Path

import golden_families
import numpy as np
import pytest
from golden_files import write_golden
from golden_numpy import NumpyModel
from numpy_decoder import DECODERS

from tests.model_config.config_json import SAME
from tests.turns import one_of

from .goldens import FAMILIES, GOLDENS, load
from .paged import ODD_CHUNKS, PagedModel, run_paged

OF_NUMPY = [name for name, family in golden_families.FAMILIES.items() if family.name in DECODERS]
FRESH = 500
"""A seed beyond those of the committed models, which are their places among the families."""
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_goldens.py"


@pytest.fixture(scope="module")
def goldens_script():
    pytest.importorskip("torch", reason="the parity extra is not installed")
    pytest.importorskip("transformers", reason="the parity extra is not installed")
    spec = importlib.util.spec_from_file_location("make_goldens", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_equals_fresh(folder: Path, family: str) -> None:
    """The logits of the golden in `folder`, of which the committed one differs."""
    golden, committed = np.load(folder / "golden.npz"), np.load(GOLDENS / family / "golden.npz")
    assert np.abs(golden["logits"] - committed["logits"]).max() > 1
    for row in run_paged(PagedModel(load(folder)), golden["token_ids"], ODD_CHUNKS):
        np.testing.assert_allclose(row, golden["logits"], atol=1e-4)


@pytest.mark.parity
@pytest.mark.parametrize("family", one_of(6, [name for name in FAMILIES if name not in OF_NUMPY]))
def test_logits_equal_transformers(family: str, goldens_script, tmp_path: Path):
    goldens_script.make(family, tmp_path, seed=FRESH, new=0)
    assert_equals_fresh(tmp_path, family)


@pytest.mark.parity
@pytest.mark.parametrize("family", one_of(3, OF_NUMPY))
def test_logits_equal_numpy(family: str, tmp_path: Path):
    write_golden(functools.partial(NumpyModel, golden_families.FAMILIES[family]), FRESH, tmp_path, new=0)
    assert_equals_fresh(tmp_path, family)


@pytest.mark.parity
@pytest.mark.parametrize("architecture", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_transformers_reads_nothing_of_what_is_accepted_as_so_anyway(architecture: str, goldens_script) -> None:
    """What `SAME` adds to a config.json, and what lacks its activation and epsilon, computes the same there."""
    import torch
    import transformers

    def logits(**fields) -> np.ndarray:
        torch.manual_seed(5)
        config = getattr(transformers, f"{architecture}Config")(**{**golden_families.SIZES, **fields})
        with torch.no_grad():
            return getattr(transformers, f"{architecture}ForCausalLM")(config)(torch.arange(3, 30)[None]).logits.numpy()

    plain = logits(hidden_act="silu", rms_norm_eps=1e-6)
    np.testing.assert_array_equal(logits(), plain)
    for same in SAME:
        if "layer_types" in same:
            same = {"layer_types": same["layer_types"][: golden_families.SIZES["num_hidden_layers"]]}
        np.testing.assert_array_equal(logits(**same), plain)


def test_every_family_has_a_golden():
    assert sorted(golden_families.FAMILIES) == FAMILIES
