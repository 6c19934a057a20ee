"""A table of what steps of a mesh take, for simulations: seconds by the size of a step and the tokens behind it."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from jaxinfer.engine.step.buckets import make_buckets
from jaxinfer.plan.estimate import MeshPlan
from jaxinfer.plan.work import ShardRows

_LEAST = 128
"""Tokens before, of the first lengths."""


def device_table(plan: MeshPlan) -> dict[str, Any]:
    """`decode`: rows of a shard, tokens that each has before, seconds; `mixed`: tokens of a prompt in a shard, or of
    several where one has not so many, tokens of each before, seconds. A step's size is that of its program: steps in
    between take what the next larger one does. None of them drafts, and what drafts reads prompts. Of a pipeline,
    seconds of the slowest of its `stages`."""
    buckets, lengths = make_buckets(plan.shapes), list(_lengths(plan.shapes.max_model_len))
    return {
        "mesh": plan.name,
        "axes": str(plan.mesh),
        "topology": str(plan.topology),
        "chip": plan.chip.name,
        "shards": plan.mesh.data,
        "stages": plan.mesh.stages,
        "pages": list(plan.memory.blocks),
        "page_tokens": plan.shapes.block_size,
        "decode": [
            [rows, before, plan.time(ShardRows(rows, 1, before)).seconds]
            for rows, before in product(buckets.rows, lengths)
        ],
        "mixed": [
            [tokens, before, plan.mixed_time(ShardRows(prompts, tokens // prompts, before)).seconds]
            for tokens, before in product(buckets.tokens, lengths)
            if before + tokens // (prompts := -(-tokens // plan.shapes.max_model_len)) <= plan.shapes.max_model_len
        ],
    }


def _lengths(longest: int) -> Iterator[int]:
    """None, and doubling up to what a sequence may have."""
    yield 0
    length = _LEAST
    while length < longest:
        yield length
        length *= 2
    if length // 2 != longest - 1:
        yield longest - 1
