"""Logits of quantised checkpoints are those of the values that their weights stand for."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.models.paged import ODD_CHUNKS, PagedModel, run_paged
from tests.quantization.checkpoints import LLAMA, MOE, loaded, made
from tests.quantization.forms import FORMS
from tests.turns import one_of

EXACT = [name for name in FORMS if name != "w8a8"]
"""Forms whose activations stay as they are."""
CONFIGS = {"dense": LLAMA, "experts": MOE}


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "kind"), one_of(5, itertools.product(EXACT, CONFIGS)))
def test_logits_are_those_of_the_values(tmp_path: Path, name: str, kind: str) -> None:
    checkpoint = made(CONFIGS[kind], *FORMS[name], left=("lm_head", "gate"))
    token_ids = np.random.default_rng(1).integers(0, 80, 40)
    folders = checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p")
    found, wanted = (run_paged(PagedModel(loaded(folder)), token_ids, ODD_CHUNKS)[0] for folder in folders)
    assert wanted.std() > 0.1
    np.testing.assert_allclose(found, wanted, atol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("name", one_of(3, ["fp8-blocks", "w4a16", "gptq-order"]))
def test_both_layouts_give_the_same(tmp_path: Path, name: str) -> None:
    folder = made(LLAMA, *FORMS[name]).write(tmp_path)
    token_ids = np.random.default_rng(1).integers(0, 80, 40)
    models = [loaded(folder, layout=layout) for layout in ("unrolled", "stacked")]
    one, other = (run_paged(PagedModel(model), token_ids, ODD_CHUNKS)[0] for model in models)
    np.testing.assert_allclose(one, other, atol=1e-4)
