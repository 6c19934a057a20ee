"""Sizes that programs are compiled for. The top bucket is the budget itself."""

from bisect import bisect_left
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jaxinfer.engine.step.plan import StepKind, StepPlan
from jaxinfer.engine.step.shapes import EngineShapes

_SMALLEST_MIXED = 16
_SMALLEST_SPLIT = 64
_HISTORY = (256, 4096)
_FEW_TOKENS, _FEW_ROWS = 4, 8
_BY_USE = ("rows", "scored", "checked", "tokens", "masks", "history")
_MOST_CHECKED = 16
"""Rows of a step that drafts under masks: with more of them drafts seldom pay, and each size is three programs. With
few sizes that leaves 8 as a rule: native products read a matrix for 8 rows at no cost, and drafts multiply rows."""


class Buckets(NamedTuple):
    """Sizes in ascending order: tokens of a mixed step, rows of a decode step, scored positions of a sample, masks and
    tokens of slots that are written at once, rows of a step that drafts under masks."""

    tokens: tuple[int, ...]
    rows: tuple[int, ...]
    scored: tuple[int, ...]
    masks: tuple[int, ...]
    history: tuple[int, ...]
    checked: tuple[int, ...]


def make_buckets(shapes: EngineShapes) -> Buckets:
    """Powers of two up to each budget, and the budget: a sum of families, never a product.

    Of tokens there are sizes in between: a mixed step costs what its bucket has, and a doubling pads by a third. With
    `few_sizes` there are powers of eight, of four for tokens, and one size of positions.
    """
    few = shapes.few_sizes
    tokens = _growing(_SMALLEST_MIXED, shapes.max_num_batched_tokens, _FEW_TOKENS if few else 2)
    between = {size * 3 // 2 for size in tokens[:-1] if size >= _SMALLEST_SPLIT and not few}
    rows, drafts = _growing(1, shapes.max_num_seqs, _FEW_ROWS if few else 2), shapes.drafting is not None
    return Buckets(
        tokens=tuple(sorted({*tokens, *(size for size in between if size < shapes.max_num_batched_tokens)})),
        rows=rows,
        # Beyond a row a slot go only prompts whose log-probabilities are asked for: one program is enough for them.
        scored=tuple(sorted({*(() if few else rows), shapes.max_scored})),
        masks=tuple(sorted({min(size, shapes.max_num_seqs) for size in (1, 8, 64, shapes.max_num_seqs)})),
        history=_HISTORY if drafts else (),
        checked=tuple(size for size in rows if size <= _MOST_CHECKED) if drafts else (),
    )


def first_buckets(shapes: EngineShapes) -> Buckets:
    """The sizes of `make_buckets` whose programs an engine needs to run every step: those of a CPU."""
    few, every = make_buckets(replace(shapes, few_sizes=True)), make_buckets(shapes)
    return few._replace(checked=tuple(sorted({*few.checked, *every.checked[-1:]})))


def missing_sizes(shapes: EngineShapes, have: Buckets) -> list[tuple[str, int]]:
    """Return the sizes of `make_buckets` that are not among these, by the name of their family: first those of decode
    steps, which are most of all."""
    every = make_buckets(shapes)
    return [
        (family, size) for family in _BY_USE for size in getattr(every, family) if size not in getattr(have, family)
    ]


def with_size(have: Buckets, family: str, size: int) -> Buckets:
    """Return the buckets with one size more."""
    return have._replace(**{family: tuple(sorted((*getattr(have, family), size)))})


def bucket_of(size: int, buckets: tuple[int, ...]) -> int:
    """The smallest bucket that holds `size`. ValueError above the top."""
    at = bisect_left(buckets, size)
    if at == len(buckets):
        raise ValueError(f"{size} is above the largest bucket, {buckets[-1]}")
    return buckets[at]


def bucket_of_plan(plan: StepPlan, buckets: Buckets, shapes: EngineShapes) -> int:
    """The size of a plan's forward, that of the shard with most: rows of a decode step, tokens of a mixed one."""
    if plan.kind is StepKind.MIXED:
        tokens = plan.num_tokens if shapes.shards == 1 else _most(plan, shapes, plan.counts)
        return bucket_of(tokens, buckets.tokens)
    return bucket_of(most_rows(plan, shapes), buckets.rows)


def most_rows(plan: StepPlan, shapes: EngineShapes) -> int:
    """Return the number of rows of the shard with most."""
    return len(plan.slots) if shapes.shards == 1 else _most(plan, shapes, None)


def _most(plan: StepPlan, shapes: EngineShapes, counts: np.ndarray | None) -> int:
    """counts: of each row, None: one."""
    return int(np.bincount(plan.slots // shapes.max_num_seqs, counts).max(initial=0))


def _growing(first: int, top: int, factor: int) -> tuple[int, ...]:
    sizes = []
    size = first
    while size < top:
        sizes.append(size)
        size *= factor
    return (*sizes, top)
