"""Inputs of every model of tests/goldens, whatever computes it, and the files that are written."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from golden_families import SIZES

TOKENS, PROMPT, NEW = 40, 9, 64
LOGITS_STD = 3.0
MIN_MARGIN = 1e-3
_TRIES = 20


class NearTieError(Exception):
    """The best two tokens of a step are too close for a fair comparison."""


class GoldenModel(Protocol):
    """A small random model. logits: [T, vocabulary] float32. save: writes config.json and model.safetensors."""

    def logits(self, ids: np.ndarray) -> np.ndarray: ...

    def save(self, folder: Path) -> None: ...


def write_golden(build: Callable[[int], GoldenModel], first_seed: int, folder: Path, new: int = NEW) -> None:
    """Writes config.json, model.safetensors and golden.npz, for the first seed that makes no near-tie. new: greedy
    tokens."""
    for seed in range(first_seed, first_seed + 1000 * _TRIES, 1000):
        try:
            return _write(build(seed), folder, new)
        except NearTieError:
            continue
    raise SystemExit(f"{folder.name}: every seed makes a near-tie")


def _write(model: GoldenModel, folder: Path, new: int) -> None:
    ids = np.random.default_rng(0).integers(3, SIZES["vocab_size"], TOKENS)
    logits, greedy = model.logits(ids), _greedy(model, ids[:PROMPT], new)
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder)
    np.savez_compressed(folder / "golden.npz", token_ids=ids, logits=logits, prompt=ids[:PROMPT], greedy=greedy)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(folder.name, size, "bytes, logits' deviation", logits.std())


def _greedy(model: GoldenModel, prompt: np.ndarray, new: int) -> np.ndarray:
    """Greedy tokens by whole forwards; fails where the best two are too close for a fair comparison."""
    ids = list(prompt)
    for _ in range(new):
        last = model.logits(np.array(ids))[-1]
        best = np.sort(last)
        if best[-1] - best[-2] <= MIN_MARGIN:
            raise NearTieError
        ids.append(int(last.argmax()))
    return np.array(ids[len(prompt) :])
