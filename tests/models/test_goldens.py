"""Logits and greedy tokens of small models of every family, over pages, against what transformers or NumPy computed."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.material import material

from .goldens import FAMILIES, GOLDENS, load
from .paged import ODD_CHUNKS, PagedModel, Part, run_paged


class Golden(NamedTuple):
    """A family's model over pages, and what was computed of it."""

    paged: PagedModel
    wanted: dict[str, NDArray]


@pytest.fixture(scope="module")
def family(request: pytest.FixtureRequest) -> Golden:
    folder = GOLDENS / request.param
    with np.load(folder / "golden.npz") as golden:
        wanted = dict(golden)
    return Golden(PagedModel(load(folder)), wanted)


SMOKE = ("llama3", "mistral", "qwen2", "qwen3")
BY_DEFAULT = (*SMOKE, "gemma3", "qwen3_moe", "gpt_oss", "gpt2")
"""Dense; with windows; with experts; with sinks; of columns before rows."""


def families(smoke: Sequence[str] = ()) -> pytest.MarkDecorator:
    """All families; the tests of one that is long share its programs."""
    params = [pytest.param(name, marks=_marks(name, name in smoke)) for name in FAMILIES]
    return pytest.mark.parametrize("family", params, indirect=True, scope="module")


def _marks(name: str, is_smoke: bool) -> list[pytest.MarkDecorator]:
    long = [] if name in BY_DEFAULT else [pytest.mark.long(group=name)]
    return [*long, pytest.mark.smoke] if is_smoke else long


@pytest.mark.few(2)
@families(smoke=SMOKE)
def test_logits_over_pages(family: Golden):
    for row in run_paged(family.paged, family.wanted["token_ids"], ODD_CHUNKS):
        np.testing.assert_allclose(row, family.wanted["logits"], atol=1e-4)


@pytest.mark.few(4)
@families()
@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_logits_in_chunks(family: Golden, chunk: int):
    token_ids = family.wanted["token_ids"]
    row, _ = run_paged(family.paged, token_ids, [(chunk, 0)] * -(-len(token_ids) // chunk))
    np.testing.assert_allclose(row, family.wanted["logits"], atol=1e-4)


@families()
def test_greedy_tokens(family: Golden):
    paged, prompt, wanted = family.paged, family.wanted["prompt"], family.wanted["greedy"]
    paged.forget()
    last = paged.step([Part(0, prompt, 0), Part(1, prompt[:0], 0)])[0][-1]
    tokens = []
    for position in range(len(prompt), len(prompt) + len(wanted)):
        tokens.append(int(last.argmax()))
        last = paged.step([Part(0, np.array(tokens[-1:]), position), Part(1, prompt[:0], 0)])[0][-1]
    assert tokens == wanted.tolist()


@pytest.mark.long
@pytest.mark.parametrize("family", ["qwen2", pytest.param("llama_linear", marks=pytest.mark.long)])
def test_stacked_layout_equals_unrolled(family: str):
    golden = np.load(GOLDENS / family / "golden.npz")
    logits = run_paged(PagedModel(load(GOLDENS / family, layout="stacked")), golden["token_ids"], ODD_CHUNKS)
    np.testing.assert_allclose(logits[0], golden["logits"], atol=1e-4)


@pytest.mark.long
def test_bfloat16_is_close():
    golden = np.load(GOLDENS / "llama3" / "golden.npz")
    logits = run_paged(
        PagedModel(load(GOLDENS / "llama3", dtype=jnp.bfloat16)), golden["token_ids"], [(16, 0), (0, 16)]
    )
    error = np.abs(logits - golden["logits"]).max()
    assert error < 0.5, f"{error} on logits whose deviation is 3"


def test_goldens_are_small_and_hard_enough():
    for family in FAMILIES:
        folder = GOLDENS / family
        assert sum(file.stat().st_size for file in folder.iterdir()) <= 200_000
        assert 2 < np.load(folder / "golden.npz")["logits"].std() < 4


@pytest.mark.parametrize("layout", ["unrolled", pytest.param("stacked", marks=pytest.mark.long)])
def test_stories260k_logits(layout: str):
    folder = material("models", "stories260K")
    reference = np.load(folder / "logits_reference.npz")
    schedule = [(16, 0), (3, 13), (13, 3)] + [(8, 8)] * 26
    logits = run_paged(PagedModel(load(folder, layout=layout)), reference["token_ids"], schedule)
    for row in logits:
        np.testing.assert_allclose(row, reference["logits"], atol=1e-4)
