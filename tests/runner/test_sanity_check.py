"""scripts/sanity_check.py on one family: its row, and that it tells wrong tokens."""

import shutil
from pathlib import Path

import numpy as np
from sanity_check import check

from tests.models.goldens import GOLDENS


def test_a_family_passes_and_one_whose_tokens_differ_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "mixtral"
    shutil.copytree(GOLDENS / "mixtral", folder)
    row = check(folder, "auto", 6)
    assert row.passed
    assert (row.architecture, row.backends, row.right, row.cached) == ("MixtralForCausalLM", "xla", 6, 8)
    golden = dict(np.load(folder / "golden.npz"))
    golden["greedy"][3] += 1
    np.savez(folder / "golden.npz", **golden)
    assert check(folder, "auto", 6).right == 5
