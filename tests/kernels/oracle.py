"""Attention over paged KV in float64 NumPy, one token at a time: what every backend is compared with."""

import numpy as np


def write(kv_pages, layer, k, v, rows) -> np.ndarray:
    """The pages after the K and V of every row's tokens were written; padding is not written."""
    pages = np.array(kv_pages, np.float64)
    size = pages.shape[3]
    for table, start, offset, count in zip(*map(np.asarray, rows), strict=True):
        for i in range(count):
            page, slot = table[(start + i) // size], (start + i) % size
            pages[layer, 0, page, slot] = k[offset + i]
            pages[layer, 1, page, slot, :, : v.shape[-1]] = v[offset + i]
    return pages


def attend(q, pages, layer, rows, *, scale, window=None, soft_cap=None, sinks=None, value_dim=None) -> np.ndarray:
    """Output [T, Hq, Dv]; zero for tokens of no row."""
    q = np.asarray(q, np.float64)
    out = np.zeros((*q.shape[:2], value_dim or q.shape[2]))
    for table, start, offset, count in zip(*map(np.asarray, rows), strict=True):
        for i in range(count):
            last = start + i
            first = 0 if window is None else max(0, last - window + 1)
            keys, values = _gather(pages, layer, table, first, last)
            out[offset + i] = _token(q[offset + i], keys, values[..., :value_dim], scale, soft_cap, sinks)
    return out


def _gather(pages, layer, table, first, last):
    size = pages.shape[3]
    where = [(table[p // size], p % size) for p in range(first, last + 1)]
    return tuple(np.stack([pages[layer, side, page, slot] for page, slot in where]) for side in (0, 1))


def _token(q, keys, values, scale, soft_cap, sinks):
    group = q.shape[0] // keys.shape[1]
    out = np.zeros((q.shape[0], values.shape[2]))
    for head in range(q.shape[0]):
        scores = keys[:, head // group] @ q[head] * scale
        if soft_cap is not None:
            scores = soft_cap * np.tanh(scores / soft_cap)
        all_scores = scores if sinks is None else np.append(scores, sinks[head])
        weights = np.exp(scores - all_scores.max())
        out[head] = weights @ values[:, head // group] / np.exp(all_scores - all_scores.max()).sum()
    return out
