"""scripts/sanity_check.py on one family and one format: its row, and that it tells wrong tokens."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from sanity_check import FORMATS, check, check_format

from tests.models.goldens import GOLDENS
from tests.quantization.checkpoints import Checkpoint
from tests.quantization.circumstances import checkpoint_of


@pytest.mark.long
def test_a_family_passes_and_one_whose_tokens_differ_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "mixtral"
    shutil.copytree(GOLDENS / "mixtral", folder)
    row = check(folder, "auto", 6)
    assert row.passed
    assert (row.architecture, row.right, row.cached) == ("MixtralForCausalLM", 6, 8)
    assert row.backends in ("native", "xla")
    golden = dict(np.load(folder / "golden.npz"))
    golden["greedy"][3] += 1
    np.savez(folder / "golden.npz", **golden)
    assert check(folder, "auto", 6).right == 5


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name if name == "awq" else pytest.param(name, marks=pytest.mark.long) for name in FORMATS]
)
def test_a_checkpoint_in_a_format(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = check_format(name, "auto", 6)
    assert row.passed
    assert (row.quantization, row.right, row.cached) == (name, 6, 8)
    monkeypatch.setattr("sanity_check.checkpoint_of", _another)
    assert not check_format(name, "auto", 6).passed


def _another(name: str) -> Checkpoint:
    """One whose values are not those that are written."""
    found = checkpoint_of(name)
    wrong = {key: values[::-1] if "down_proj" in key else values for key, values in found.plain.items()}
    return found._replace(plain=wrong)
