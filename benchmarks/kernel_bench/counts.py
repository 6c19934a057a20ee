"""Bytes and FLOPs of one call, counted from shapes: the least that any kernel must move and multiply."""

import jax.numpy as jnp
import numpy as np

from benchmarks.device.counts import Work
from benchmarks.kernel_bench.cases import AttentionCase, Case, MatmulCase, Row, WriteCase

_SCALE_BYTES = 4
_CODE_BYTES = {"int8": 1, "int4": 0.5, "e4m3": 1, "e2m1": 0.5}


def work_of(case: Case, itemsize: int) -> Work:
    """One call with activations, pages and plain weights of `itemsize` bytes a value."""
    match case:
        case AttentionCase():
            return _attention(case, itemsize)
        case MatmulCase():
            return _matmuls(case, itemsize)
        case WriteCase():
            return _write(case)


def visible_pairs(row: Row, window: int | None) -> int:
    """(token, key) pairs of a row in which the token sees the key."""
    return _pairs_before(row.start + row.count, window) - _pairs_before(row.start, window)


def cached_keys(row: Row, window: int | None) -> int:
    """Keys of earlier steps that any token of the row sees."""
    return row.start if window is None else min(row.start, window - 1)


def group_sizes(case: MatmulCase) -> np.ndarray:
    """[experts] int32: tokens that chose each expert, drawn as if all were as likely; the same every time."""
    drawn = np.random.default_rng(0).multinomial(case.tokens * case.chosen, [1 / case.experts] * case.experts)
    return drawn.astype(np.int32)


def _attention(case: AttentionCase, itemsize: int) -> Work:
    """Cached keys and values are read once a row; this step's are read, and written to pages; q and out move once.

    Page tables are not counted. Scores and weighted sums: two FLOPs for each of a key's and a value's elements, for
    each visible pair and query head.
    """
    model, rows = case.model, case.lengths
    widths = model.key_dim + model.value_dim
    tokens = sum(row.count for row in rows)
    cached = sum(cached_keys(row, model.window) for row in rows)
    pairs = sum(visible_pairs(row, model.window) for row in rows)
    moved = (cached + 2 * tokens) * model.kept + tokens * model.q_heads * widths
    return Work(moved * itemsize, 2 * model.q_heads * widths * pairs)


def _matmuls(case: MatmulCase, itemsize: int) -> Work:
    """Weights of experts that no token chose are not read; x, what lies between, and the result move once each way."""
    rows = case.tokens * case.chosen
    read = int((group_sizes(case) > 0).sum()) if case.experts else 1
    elements = 2 * case.hidden * case.inner
    weights = read * int(elements * _CODE_BYTES.get(case.weights, itemsize) + _scale_bytes(case))
    between = 2 * rows * (case.hidden + case.inner) * itemsize
    return Work(weights + between, 2 * rows * elements)


def _write(case: WriteCase) -> Work:
    """Count the work of a write: each new value is read once and written once; nothing is multiplied."""
    return Work(2 * case.tokens * case.model.kept * jnp.dtype(case.dtype).itemsize, 0)


def _scale_bytes(case: MatmulCase) -> int:
    if case.weights == "plain":
        return 0
    if case.group is None:
        return _SCALE_BYTES * (case.hidden + case.inner)
    each = _SCALE_BYTES if case.scales == "float32" else 1
    return each * 2 * case.hidden * case.inner // case.group


def _pairs_before(tokens: int, window: int | None) -> int:
    """Visible pairs of a row's first `tokens` tokens."""
    growing = tokens if window is None else min(tokens, window)
    return growing * (growing + 1) // 2 + (tokens - growing) * (window or 0)
