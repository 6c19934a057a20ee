"""Rows for the sampler alone: logits, and what a request asks, without a model or an engine."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.engine.step.slot_init import SEEN_IN_PROMPT
from jaxinfer.runner.sampler import Sampled, sample_tokens
from jaxinfer.runner.sampler.by_rows import sample_by_rows
from jaxinfer.runner.state import SlotParams
from jaxinfer.sampling import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, SamplingParams, columns
from tests.runner import oracle


class Row(NamedTuple):
    """One scored position. target: a token whose log-probability is asked for, -1 for a draw."""

    logits: np.ndarray
    params: SamplingParams
    prompt: Sequence[int] = (0,)
    output: Sequence[int] = ()
    stop_ids: Sequence[int] = ()
    sequence_index: int = 0
    target: int = -1

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.output)


VOCABULARY = 1300  # two blocks of the cumulative distribution, and part of a third
_ROWS = 32
_programs = {"at once": jax.jit(sample_tokens), "by rows": jax.jit(sample_by_rows)}


def run(rows: Sequence[Row], form: str = "at once") -> Sampled:
    """The sampler's program over rows, each in a slot of its own; arrays come back as NumPy's.

    Few rows are repeated to a fixed number, so that little is compiled.
    """
    sampled = run_just([*rows, *[rows[0]] * (-len(rows) % _ROWS)], form)
    return jax.tree.map(lambda x: x[: len(rows)], sampled)


def run_just(rows: Sequence[Row], form: str = "at once", used: int | None = None) -> Sampled:
    """The same with just these rows, of which the first `used` have slots."""
    slots = np.random.default_rng(len(rows)).permutation(len(rows)).astype(np.int32)
    counts = np.zeros((len(rows) + 1, len(rows[0].logits)), np.int16)
    for slot, row in zip(slots, rows, strict=True):
        counts[slot] = packed_counts(row)
    positions = np.array([row.position for row in rows], np.int32)
    targets = np.array([row.target for row in rows], np.int32)
    logits = np.stack([row.logits for row in rows]).astype(np.float32)
    slots[len(rows) if used is None else used :] = len(rows)
    sampled = _programs[form](logits, counts, slots, slot_params(rows), positions, targets)
    return jax.tree.map(np.asarray, sampled)


def expected(row: Row) -> tuple[int, set[int]]:
    """The oracle's token, and others that rounding may make of it."""
    logits = oracle.adjusted(row.logits, row.params, row.prompt, row.output, row.stop_ids)
    return oracle.choose(logits, row.params, oracle.uniform(row.params.seed or 0, row.sequence_index, row.position))


def packed_counts(row: Row) -> np.ndarray:
    """int16 [V]; of no meaning, and so filled with junk, where the row has no penalties."""
    size = len(row.logits)
    if not row.params.uses_counts:
        return np.full(size, 5, np.int16)
    counts = np.zeros(size, np.int16)
    for token, count in Counter(row.output).items():
        counts[token] = count
    counts[list(set(row.prompt))] += SEEN_IN_PROMPT
    return counts


def slot_params(rows: Sequence[Row]) -> SlotParams:
    """What `admit` keeps of the rows' parameters, in the rows' order."""

    seeds = [row.params.seed or 0 for row in rows]
    fields: dict[str, Any] = {
        "prompt_len": np.array([len(row.prompt) for row in rows], np.int32),
        "seed": np.array([[seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF] for seed in seeds], np.uint32),
        "sequence_index": np.array([row.sequence_index for row in rows], np.int32),
        "columns": {
            name: np.array([getattr(row.params, name) for row in rows], own.dtype) for name, own in columns().items()
        },
        "uses_counts": np.array([row.params.uses_counts for row in rows], np.int32),
        "constrained": np.zeros(len(rows), np.int32),
        "wants_logprobs": np.array([row.params.logprobs is not None for row in rows], np.int32),
        "stop_ids": _filled([row.stop_ids for row in rows], MAX_STOP_TOKEN_IDS, -1, np.int32),
        "bias_ids": _filled([list(row.params.logit_bias) for row in rows], MAX_LOGIT_BIAS, -1, np.int32),
        "bias_values": _filled([list(row.params.logit_bias.values()) for row in rows], MAX_LOGIT_BIAS, 0, np.float32),
    }
    return jax.tree.map(jnp.asarray, SlotParams(**fields))


def _filled(lists: Sequence[Sequence[float]], width: int, fill: int, dtype: type) -> np.ndarray:
    array = np.full((len(lists), width), fill, dtype)
    for row, values in zip(array, lists, strict=True):
        row[: len(values)] = values
    return array


def random_params(rng: np.random.Generator, likely: np.ndarray) -> SamplingParams:
    """Each parameter is off about half of the time. likely: the ids that most biases are for."""

    def maybe(value, off):
        return value if rng.random() < 0.5 else off

    penalised = rng.random() < 0.6
    biased = {*rng.choice(likely, maybe(rng.integers(1, 12), 0)), *rng.choice(VOCABULARY, maybe(3, 0))}
    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.3, 0.8, 1.0, 1.0, 2.5])),
        top_p=float(maybe(rng.uniform(0.05, 1.0), 1.0)),
        top_k=int(maybe(rng.choice([1, 2, 5, 40, 1299, 5000]), 0)),
        min_p=float(maybe(rng.uniform(0.0, 0.3), 0.0)),
        seed=int(rng.integers(-(2**63), 2**63)),
        presence_penalty=float(maybe(rng.uniform(-2, 2), 0.0)) if penalised else 0.0,
        frequency_penalty=float(maybe(rng.uniform(-2, 2), 0.0)) if penalised else 0.0,
        repetition_penalty=float(maybe(rng.uniform(0.5, 2), 1.0)) if penalised else 1.0,
        logit_bias={int(token): float(rng.uniform(-10, 10)) for token in biased},
        min_tokens=int(maybe(rng.integers(0, 8), 0)),
        max_tokens=None,
        logprobs=maybe(3, None),
        top_n_sigma=float(maybe(rng.uniform(0.1, 4.0), rng.choice([0.0, -1.0]))),
    )


def random_row(rng: np.random.Generator, vocabulary: int = VOCABULARY) -> Row:
    logits = (rng.normal(size=vocabulary) * 3).astype(np.float32)
    likely = np.argsort(-logits)[:30]  # what was seen is likely, or penalties would not matter
    return Row(
        logits,
        random_params(rng, likely),
        prompt=rng.choice(likely, rng.integers(1, 20)).tolist(),
        output=rng.choice(likely, rng.integers(0, 20)).tolist(),
        stop_ids=rng.choice(likely, rng.integers(1, 5), replace=False).tolist(),
        sequence_index=int(rng.integers(0, 5)),
    )
