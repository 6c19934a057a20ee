"""Merges the sums of blocks whose keys were cut: the second kernel of GPU attention."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.gpu import work_items as item
from jaxinfer_kernels.gpu.attention_form import LOWEST, Form

AT_ONCE = 16
"""Parts that are read before the first is added: enough loads under way to hide that each takes a microsecond."""


class MergeArrays(NamedTuple):
    """Global memory; fields are those of `attention_form.Arrays`. merges: [M, 4]."""

    merges: Any
    parts: Any
    stats: Any
    numbers: Any
    sinks: Any
    out: Any


class _Sums(NamedTuple):
    """An online softmax of one row: two numbers, and [part_width] values."""

    highest: jax.Array
    weight: jax.Array
    values: jax.Array


def merge_program(form: Form, each: int, refs: MergeArrays, line: Any) -> None:
    """The kernel: one program a cut block, `each` rows of its tile, and a KV head. line: [part_width] of results."""
    number, place, head = lax.axis_index("merge"), lax.axis_index("rows"), lax.axis_index("head")
    count, parts = refs.merges[number, item.MERGE_COUNT], refs.merges[number, item.MERGE_PARTS]
    used = form.tokens * form.group

    def merge(index: jax.Array, _: None) -> None:
        row = place * each + index
        warpgroup, within = lax.div(row, used), lax.rem(row, used)
        token = warpgroup * form.tokens + lax.div(within, form.group)

        @pl.when((parts > 0) & (token < count))
        def _() -> None:
            first = refs.merges[number, item.MERGE_PART] * form.warpgroups + warpgroup
            sums = _merged(form, refs, first, parts, head, within)
            target = refs.out.at[refs.merges[number, item.MERGE_OFFSET] + token, head, lax.rem(within, form.group)]
            _send(form, refs, line, target, refs.sinks[head, within], sums)

    lax.fori_loop(0, each, merge, None)


def _merged(
    form: Form, refs: MergeArrays, first: jax.Array, parts: jax.Array, head: jax.Array, row: jax.Array
) -> _Sums:
    """Sums over all parts of a row. The last is read several times where their number is no multiple of AT_ONCE."""

    def step(index: jax.Array, sums: _Sums) -> _Sums:
        numbers = [index * AT_ONCE + i for i in range(AT_ONCE)]
        places = [first + jnp.minimum(number, parts - 1) * form.warpgroups for number in numbers]
        highest = [
            jnp.where(number < parts, refs.stats[place, head, 0, row], LOWEST)
            for number, place in zip(numbers, places, strict=True)
        ]
        weights = [refs.stats[place, head, 1, row] for place in places]
        values = [refs.parts[place, head, row] for place in places]
        joint = sums.highest
        for one in highest:
            joint = jnp.maximum(joint, one)
        keep = jnp.exp2(sums.highest - joint)
        weight, value = sums.weight * keep, sums.values * keep
        for number, one, other, many in zip(numbers, highest, weights, values, strict=True):
            take = jnp.where(number < parts, jnp.exp2(one - joint), 0.0)
            weight, value = weight + other * take, value + many * take
        return _Sums(joint, weight, value)

    zeros = plgpu.layout_cast(jnp.zeros((form.part_width,), jnp.float32), _line_layout(form))
    begin = _Sums(jnp.float32(LOWEST), jnp.float32(0), zeros)
    return lax.fori_loop(0, lax.div(parts + AT_ONCE - 1, AT_ONCE), step, begin)


def _send(form: Form, refs: MergeArrays, line: Any, target: Any, sink: jax.Array, sums: _Sums) -> None:
    weight = sums.weight
    if form.sinks:
        weight += jnp.exp2(sink - sums.highest)
    line[...] = (sums.values * (refs.numbers[1] / weight)).astype(line.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(line.at[pl.ds(0, form.value_dim)], target)
    plgpu.wait_smem_to_gmem(0)


def _line_layout(form: Form) -> Any:
    return plgpu.Layout.WG_STRIDED((form.part_width,), vec_size=form.part_width // 128)


def kernel_of(form: Form, each: int) -> Callable[..., None]:
    """The kernel over references: fields of MergeArrays, then shared memory."""

    def body(*refs: Any) -> None:
        merge_program(form, each, MergeArrays(*refs[:-1]), refs[-1])

    return body
