"""Logits and greedy tokens of small models of every family, over pages, against what transformers or NumPy computed."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from tests.material import material

from .goldens import FAMILIES, GOLDENS, load
from .paged import ODD_CHUNKS, PagedModel, Part, run_paged


@functools.cache
def paged_family(family: str) -> PagedModel:
    return PagedModel(load(GOLDENS / family))


SMOKE = ("llama3", "mistral", "qwen2", "qwen3")


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.smoke) if name in SMOKE else name for name in FAMILIES]
)
def test_logits_over_pages(family: str):
    golden = np.load(GOLDENS / family / "golden.npz")
    logits = run_paged(paged_family(family), golden["token_ids"], ODD_CHUNKS)
    for row in logits:
        np.testing.assert_allclose(row, golden["logits"], atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 7, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_in_chunks(family: str, chunk: int):
    golden = np.load(GOLDENS / family / "golden.npz")
    schedule = [(chunk, 0)] * -(-len(golden["token_ids"]) // chunk)
    row, _ = run_paged(paged_family(family), golden["token_ids"], schedule)
    np.testing.assert_allclose(row, golden["logits"], atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens(family: str):
    golden = np.load(GOLDENS / family / "golden.npz")
    prompt, wanted = golden["prompt"], golden["greedy"]
    paged = paged_family(family)
    paged.forget()
    last = paged.step([Part(0, prompt, 0), Part(1, prompt[:0], 0)])[0][-1]
    tokens = []
    for position in range(len(prompt), len(prompt) + len(wanted)):
        tokens.append(int(last.argmax()))
        last = paged.step([Part(0, np.array(tokens[-1:]), position), Part(1, prompt[:0], 0)])[0][-1]
    assert tokens == wanted.tolist()


@pytest.mark.parametrize("family", ["qwen2", pytest.param("llama_linear", marks=pytest.mark.long)])
def test_stacked_layout_equals_unrolled(family: str):
    golden = np.load(GOLDENS / family / "golden.npz")
    logits = run_paged(PagedModel(load(GOLDENS / family, layout="stacked")), golden["token_ids"], ODD_CHUNKS)
    np.testing.assert_allclose(logits[0], golden["logits"], atol=1e-4)


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
