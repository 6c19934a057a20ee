"""A model run over paged KV, in chunks and decode steps, as an engine's programs run it."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxinfer_kernels import BlockSizes, RaggedRows, ragged_paged_attention
from jaxinfer_kernels.pages import as_type

from jaxinfer.models.loaded import LoadedModel

PAGE, PAGES, TOKENS = 4, 64, 16
ODD_CHUNKS = [(7, 1), (1, 9), (12, 3), (0, 11), (5, 1)]
"""A schedule of `run_paged`."""

SIZES = BlockSizes(keys=8, short_tiles=2, query_tokens=4, query_blocks=1)


class Part(NamedTuple):
    """What one row computes in a step: `ids` at positions from `start` on, over the pages of `row`."""

    row: int
    ids: np.ndarray
    start: int


class PagedModel:
    """Steps of two rows over pages that hold NaN until they are written."""

    def __init__(self, model: LoadedModel):
        self.model = model
        self.table = np.random.default_rng(7).permutation(np.arange(1, 2 * PAGES + 1)).astype(np.int32).reshape(2, -1)
        self.program = jax.jit(partial(_forward, model), static_argnames="all_short", donate_argnums=2)
        self.forget()

    def forget(self) -> None:
        """Fills all pages with NaN again."""
        shapes = [self.model.kv_shape(g, 2 * PAGES + 1, PAGE) for g in range(len(self.model.config.kv_groups))]
        self.kv = tuple(_unwritten(self.model, group, shape) for group, shape in enumerate(shapes))

    def step(self, parts: list[Part]) -> dict[int, np.ndarray]:
        """Logits [tokens, vocab] by row. Steps of one token a row take the decode program."""
        parts = sorted(parts, key=lambda part: len(part.ids) > 1)
        counts = [len(part.ids) for part in parts]
        decode = max(counts) <= 1
        width = len(parts) if decode else TOKENS
        positions = [part.start + np.arange(len(part.ids)) for part in parts]
        rows = RaggedRows(
            jnp.asarray(self.table[[part.row for part in parts]]),
            jnp.asarray(np.array([part.start for part in parts], np.int32)),
            jnp.asarray(np.cumsum([0, *counts[:-1]]).astype(np.int32)),
            jnp.asarray(np.array(counts, np.int32)),
        )
        tokens, places = (_padded(x, width) for x in ([part.ids for part in parts], positions))
        short = np.int32(sum(count <= 1 for count in counts))
        logits, self.kv = self.program(
            self.model.weights, self.model.head, self.kv, tokens, places, rows, short, all_short=decode
        )
        split = np.split(np.asarray(logits)[: sum(counts)], np.cumsum(counts)[:-1])
        return {part.row: part_logits for part, part_logits in zip(parts, split, strict=True)}


def _padded(parts: list[np.ndarray], width: int) -> np.ndarray:
    joined = np.concatenate(parts)
    return np.pad(joined, (0, width - len(joined))).astype(np.int32)


def _unwritten(model: LoadedModel, group: int, shape: tuple[int, ...]) -> jax.Array:
    """NaN, or the largest of integers."""
    kept = model.kv_type(group)
    value = jnp.iinfo(kept).max if jnp.issubdtype(kept, jnp.integer) else jnp.nan
    return as_type(jnp.full(shape, value, kept), model.kv_dtype(group))


def _forward(model, weights, head, kv, tokens, positions, rows, short, *, all_short):
    decoder, config = model.build(weights), model.config
    short = len(rows.count) if all_short else short

    def attend(heads, kv, place):
        q, k, v, sinks, scales = heads
        group, layer, scoring = place
        options = {
            "scale": scoring.scale,
            "soft_cap": scoring.soft_cap,
            "sinks": sinks,
            "window": config.kv_groups[group].window,
            "kv_scale": None if scales is None else (scales[0], scales[1]),
            "kv_dtype": model.kv_type(group),
            "block_sizes": SIZES,
        }
        out, pages = ragged_paged_attention(q, k, v, kv[group], layer, rows, short_rows=short, short_len=1, **options)
        return out, (*kv[:group], pages, *kv[group + 1 :])

    hidden, kv = decoder(tokens, positions, kv, attend)
    return model.logits(head, decoder.final_norm(hidden)), kv


def run_paged(paged: PagedModel, ids: np.ndarray, schedule: list[tuple[int, int]]) -> np.ndarray:
    """Logits [2, len(ids), vocab] of two rows that compute the same ids at their own pace.

    schedule: for each step the tokens of either row; what is left is computed by decode steps.
    """
    paged.forget()
    done = [0, 0]
    found: list[list[np.ndarray]] = [[], []]
    steps = iter(schedule)
    while min(done) < len(ids):
        counts = next(steps, (1, 1))
        parts = [Part(row, ids[done[row] : done[row] + counts[row]], done[row]) for row in (0, 1)]
        for row, logits in paged.step(parts).items():
            found[row].append(logits)
            done[row] += len(logits)
    return np.stack([np.concatenate(rows) for rows in found])
