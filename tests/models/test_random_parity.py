"""scripts/random_parity.py: a few of its models, that it tells wrong ones, and that every family is drawn."""

import numpy as np
import pytest
from golden_families import FAMILIES
from random_families import RANDOM, Draw, random_family

from jaxinfer.model_config.registry import ARCHITECTURES

VISION = {"Phi3VForCausalLM"}
"""Text parts that are computed as another family's."""


def test_every_family_is_drawn() -> None:
    assert RANDOM.keys() == ARCHITECTURES.keys() - VISION
    assert RANDOM.keys() >= {family.name for family in FAMILIES.values() if "text_config" not in family.fields}


def test_the_same_seed_draws_the_same_model() -> None:
    for name in RANDOM:
        drawn = [random_family(name, Draw(seed)) for seed in ("0", "0", "1")]
        assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parity
@pytest.mark.long
@pytest.mark.parametrize("number", [0, 7, 32])
def test_a_model_is_within_the_tolerance(number: int) -> None:
    """Of transformers, dense and with experts; of NumPy."""
    pytest.importorskip("torch", reason="the parity extra is not installed")
    pytest.importorskip("transformers", reason="the parity extra is not installed")
    from random_parity import compare

    result = compare(seed=1, number=number)
    assert result.passed, str(result)
    assert str(result).endswith(" ok")


@pytest.mark.parity
@pytest.mark.long
def test_a_wrong_model_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the parity extra is not installed")
    pytest.importorskip("transformers", reason="the parity extra is not installed")
    import random_parity

    class Wrong(random_parity.NumpyModel):
        """Computes other logits than those of what it saves."""

        def logits(self, ids: np.ndarray) -> np.ndarray:
            return super().logits(ids) * np.float32(1.001)

    monkeypatch.setattr(random_parity, "NumpyModel", Wrong)
    monkeypatch.setattr(random_parity, "RANDOM", {"InternLM2ForCausalLM": RANDOM["InternLM2ForCausalLM"]})
    result = random_parity.compare(seed=1, number=0)
    assert not result.passed
    assert str(result).endswith(" FAIL")
